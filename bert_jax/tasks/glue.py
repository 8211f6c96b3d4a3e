"""GLUE by name: columns, files, labels and scores of its tasks, and the form of its submissions.

Wang et al., 2019, "GLUE: A Multi-Task Benchmark and Analysis Platform"; the files are those of
gluebenchmark.com/tasks, the data set of TFDS is `glue`, and submissions are as
gluebenchmark.com/faq asks.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_jax.errors import UserError
from bert_jax.tasks.splits import set_name


@dataclass(frozen=True, kw_only=True)
class GlueTask:
    """What GLUE says of a task.

    folder: of its files, and the name of its submission.
    columns: of the text, of the second text ("" where there is none) and of the label.
    labels: as the files and submissions have them; none for numbers.
    tfds_columns, tfds_labels: what TFDS calls columns and, in the same order, labels.
    score: that GLUE reports; the first, where it reports two.
    header: of files that do not name their columns.
    id_column: of the test files.
    parts: of the dev and test sets, where there are several.
    """

    folder: str
    columns: tuple[str, str, str]
    labels: tuple[str, ...]
    tfds_columns: tuple[str, str, str]
    tfds_labels: tuple[str, ...]
    score: str = "accuracy"
    header: tuple[str, ...] = ()
    id_column: str = "index"
    parts: tuple[str, ...] = ("",)


_SENTENCE = ("sentence", "", "label")
_SENTENCES = ("sentence1", "sentence2", "label")
_ENTAILED = ("entailment", "not_entailment")
_ENTAILED_OR_NEUTRAL = ("entailment", "neutral", "contradiction")

TASKS = {
    "cola": GlueTask(
        folder="CoLA",
        columns=_SENTENCE,
        labels=("0", "1"),
        tfds_columns=_SENTENCE,
        tfds_labels=("unacceptable", "acceptable"),
        score="matthews",
        header=("source", "label", "mark", "sentence"),
    ),
    "sst2": GlueTask(
        folder="SST-2",
        columns=_SENTENCE,
        labels=("0", "1"),
        tfds_columns=_SENTENCE,
        tfds_labels=("negative", "positive"),
    ),
    "mrpc": GlueTask(
        folder="MRPC",
        columns=("#1 String", "#2 String", "Quality"),
        labels=("0", "1"),
        tfds_columns=_SENTENCES,
        tfds_labels=("not_equivalent", "equivalent"),
        score="f1",
    ),
    "stsb": GlueTask(
        folder="STS-B",
        columns=("sentence1", "sentence2", "score"),
        labels=(),
        tfds_columns=_SENTENCES,
        tfds_labels=(),
        score="pearson_spearman",
    ),
    "qqp": GlueTask(
        folder="QQP",
        columns=("question1", "question2", "is_duplicate"),
        labels=("0", "1"),
        tfds_columns=("question1", "question2", "label"),
        tfds_labels=("not_duplicate", "duplicate"),
        score="f1",
        id_column="id",
    ),
    "mnli": GlueTask(
        folder="MNLI",
        columns=("sentence1", "sentence2", "gold_label"),
        labels=_ENTAILED_OR_NEUTRAL,
        tfds_columns=("premise", "hypothesis", "label"),
        tfds_labels=_ENTAILED_OR_NEUTRAL,
        parts=("_matched", "_mismatched"),
    ),
    "qnli": GlueTask(
        folder="QNLI",
        columns=("question", "sentence", "label"),
        labels=_ENTAILED,
        tfds_columns=("question", "sentence", "label"),
        tfds_labels=_ENTAILED,
    ),
    "rte": GlueTask(
        folder="RTE",
        columns=_SENTENCES,
        labels=_ENTAILED,
        tfds_columns=_SENTENCES,
        tfds_labels=_ENTAILED,
    ),
    "wnli": GlueTask(
        folder="WNLI",
        columns=_SENTENCES,
        labels=("0", "1"),
        tfds_columns=_SENTENCES,
        tfds_labels=("not_entailment", "entailment"),
    ),
}
_SUBMITTED_PARTS = {"test": "", "test_matched": "-m", "test_mismatched": "-mm"}


def glue_settings(name: str, source: str) -> dict[str, Any]:
    """The settings of a GLUE task: of a `Regression` for STS-B, else of a `Classification`.

    Args:
      name: a key of TASKS.
      source: the folder that holds GLUE's folders, or "tfds" for the data set `glue` of TFDS.
        Without a dev or test file in its folder, none is set.

    Raises:
      UserError: there is no such task.
    """
    if name not in TASKS:
        raise UserError(f"glue: no task {name!r}; there are {', '.join(TASKS)}")
    task, tfds = TASKS[name], source == "tfds"
    files = _tfds_splits(name, task) if tfds else _files(Path(source) / task.folder, task)
    text, pair, label = task.tfds_columns if tfds else task.columns
    settings = {
        "text_column": text,
        "pair_column": pair,
        "label_column": label,
        "id_column": "idx" if tfds else task.id_column,
        "header": () if tfds else task.header,
        # Lines of QQP are broken in two by line ends in the text.
        "broken": "skip" if name == "qqp" else "error",
        "score": task.score,
        "glue": name,
    }
    if task.labels:
        settings["labels"] = task.tfds_labels if tfds else task.labels
    return settings | files


def submission(name: str, path: Path, predictions: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The predictions of a test set in GLUE's form: name of the file and what is in it.

    Args:
      name: a key of TASKS.
      path: of the test set; for any other set there is nothing. Told where numbers are missing.
      predictions: with "predicted", and with "id" where the test set has it.

    Raises:
      UserError: an id that is no whole number, which GLUE has not.
    """
    task, part = TASKS[name], set_name(path)
    if part not in _SUBMITTED_PARTS:
        return {}
    official = dict(zip(task.labels + task.tfds_labels, task.labels * 2, strict=True))
    rows = sorted(
        (_index(prediction.get("id", row), path), prediction["predicted"])
        for row, prediction in enumerate(predictions)
    )
    if rows and (missing := rows[-1][0] + 1 - len(rows)) > 0:
        print(
            f"{path}: {missing:,} examples are not in it, or were left out, and have no line in "
            "the submission: GLUE takes whole ones",
            file=sys.stderr,
        )
    lines = ["index\tprediction"]
    for index, predicted in rows:
        # STS-B's scores go from 0 to 5.
        told = official[predicted] if official else f"{min(max(predicted, 0.0), 5.0):.3f}"
        lines.append(f"{index}\t{told}")
    return {f"{task.folder}{_SUBMITTED_PARTS[part]}.tsv": "\n".join(lines) + "\n"}


def _index(value: Any, path: Path) -> int:
    try:
        return int(value)
    except ValueError as error:
        raise UserError(f"{path}: GLUE numbers its test examples, and one is {value!r}") from error


def _files(folder: Path, task: GlueTask) -> dict[str, Any]:
    dev, *more_dev = (folder / f"dev{part}.tsv" for part in task.parts)
    test, *more_test = (folder / f"test{part}.tsv" for part in task.parts)
    return {
        "train": str(folder / "train.tsv"),
        "dev": str(dev) if dev.is_file() else "",
        "test": str(test) if test.is_file() else "",
        "also": tuple(str(path) for path in (*more_dev, *more_test) if path.is_file()),
    }


def _tfds_splits(name: str, task: GlueTask) -> dict[str, Any]:
    dev, *more_dev = (f"tfds:glue/{name}/validation{part}" for part in task.parts)
    test, *more_test = (f"tfds:glue/{name}/test{part}" for part in task.parts)
    return {
        "train": f"tfds:glue/{name}/train",
        "dev": dev,
        "test": test,
        "also": (*more_dev, *more_test),
    }
