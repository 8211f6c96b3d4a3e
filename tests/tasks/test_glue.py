"""GLUE by name: its files as they are, TFDS, and the form of submissions."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.tasks.classification import Classification
from bert_jax.tasks.glue import TASKS, glue_settings, submission
from bert_jax.tasks.regression import Regression
from bert_jax.tasks.texts import TextTask

MRPC = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
STSB = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"
MNLI = "index\tpromptID\tpairID\tgenre\tsentence1\tsentence2"
# The first lines of GLUE's files with a row each of ours: train, test, and what is read of them.
FILES = {
    "cola": (
        "gj04\t1\t*\tFred sings.\n",
        "index\tsentence\n0\tShe sings.\n",
        ("Fred sings.", None, "1"),
        ("She sings.", None),
    ),
    "sst2": (
        "sentence\tlabel\na fine film \t1\n",
        "index\tsentence\n0\ta film \n",
        ("a fine film ", None, "1"),
        ("a film ", None),
    ),
    "mrpc": (
        f'{MRPC}\n1\t70\t71\tHe said "no\tHe said no\n',
        "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t8\t9\tA\tB\n",
        ('He said "no', "He said no", "1"),
        ("A", "B"),
    ),
    "stsb": (
        f'{STSB}\tscore\n0\tg\tf\t2012\t1\tn\tn\tA "man\tA man\t4.750\n',
        f"{STSB}\n0\tg\tf\t2012\t1\tn\tn\tA\tB\n",
        ('A "man', "A man", 4.75),
        ("A", "B"),
    ),
    "qqp": (
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n7\t1\t2\tWhy?\tHow?\t0\n8\tbroken\n",
        "id\tquestion1\tquestion2\n0\tA?\tB?\n",
        ("Why?", "How?", "0"),
        ("A?", "B?"),
    ),
    "mnli": (
        f"{MNLI}\tlabel1\tgold_label\n0\t1\t1n\tfiction\tA man\tA dog\tneutral\tneutral\n",
        f"{MNLI}\n0\t1\t1n\tfiction\tA\tB\n",
        ("A man", "A dog", "neutral"),
        ("A", "B"),
    ),
    "qnli": (
        "index\tquestion\tsentence\tlabel\n0\tWho?\tHe.\tentailment\n",
        "index\tquestion\tsentence\n0\tA?\tB.\n",
        ("Who?", "He.", "entailment"),
        ("A?", "B."),
    ),
    "rte": (
        "index\tsentence1\tsentence2\tlabel\n0\tA man\tA dog\tnot_entailment\n",
        "index\tsentence1\tsentence2\n0\tA\tB\n",
        ("A man", "A dog", "not_entailment"),
        ("A", "B"),
    ),
    "wnli": (
        "index\tsentence1\tsentence2\tlabel\n0\tA man\tA dog\t1\n",
        "index\tsentence1\tsentence2\n0\tA\tB\n",
        ("A man", "A dog", "1"),
        ("A", "B"),
    ),
}


def glue_task(name: str, source: str) -> TextTask:
    kind = Regression if name == "stsb" else Classification
    return kind(**glue_settings(name, source))


def write_glue(root: Path, name: str) -> Path:
    """GLUE's files of a task, each with an example."""
    folder = root / TASKS[name].folder
    folder.mkdir()
    train, test, _, _ = FILES[name]
    (folder / "train.tsv").write_text(train)
    for part in TASKS[name].parts:
        (folder / f"dev{part}.tsv").write_text(train)
        (folder / f"test{part}.tsv").write_text(test)
    return folder


def test_every_task_is_tried():
    assert set(FILES) == set(TASKS)
    assert len(TASKS) == 9


@pytest.mark.parametrize("name", TASKS)
def test_files_are_read_as_glue_has_them(name, tmp_path):
    write_glue(tmp_path, name)
    task = glue_task(name, str(tmp_path))
    _, _, expected_train, expected_test = FILES[name]
    for path in (task.train, task.dev):
        (example,) = task.read(Path(path))
        assert (example.text, example.pair, example.label) == expected_train
        task.check([example])
    (example,) = task.read(Path(task.test), labelled=False)
    assert (example.text, example.pair) == expected_test
    assert example.id == "0"
    assert example.label is None


def test_the_best_model_is_the_one_of_the_score_that_glue_reports(tmp_path):
    """Wang et al. (2019), table 1; the first, where there are two."""
    scores = {"cola": "matthews", "mrpc": "f1", "qqp": "f1", "stsb": "pearson_spearman"}
    for name in TASKS:
        assert glue_task(name, str(tmp_path)).score == scores.get(name, "accuracy")


def test_what_is_not_on_disk_is_not_set(tmp_path):
    folder = write_glue(tmp_path, "rte")
    (folder / "dev.tsv").unlink()
    (folder / "test.tsv").unlink()
    task = glue_task("rte", str(tmp_path))
    assert (task.train, task.dev, task.test) == (str(folder / "train.tsv"), "", "")


def test_mnli_has_two_dev_and_two_test_sets(tmp_path):
    folder = write_glue(tmp_path, "mnli")
    task = glue_task("mnli", str(tmp_path))
    assert task.dev == str(folder / "dev_matched.tsv")
    assert task.test == str(folder / "test_matched.tsv")
    assert task.also == (str(folder / "dev_mismatched.tsv"), str(folder / "test_mismatched.tsv"))
    exported = task.exports(Path(task.also[1]), [{"id": "0", "predicted": "neutral"}])
    assert exported == {"MNLI-mm.tsv": "index\tprediction\n0\tneutral\n"}
    assert list(task.exports(Path(task.test), [])) == ["MNLI-m.tsv"]
    assert task.exports(Path(task.also[0]), []) == {}


@pytest.mark.parametrize(
    ("name", "predicted", "told"),
    [
        ("cola", "acceptable", "1"),
        ("sst2", "negative", "0"),
        ("sst2", "1", "1"),
        ("mrpc", "equivalent", "1"),
        ("qqp", "not_duplicate", "0"),
        ("qnli", "not_entailment", "not_entailment"),
        ("rte", "entailment", "entailment"),
        ("wnli", "entailment", "1"),
        ("stsb", 5.31, "5.000"),
        ("stsb", -0.2, "0.000"),
        ("stsb", 2.71828, "2.718"),
    ],
)
def test_submissions_have_the_official_labels(name, predicted, told):
    (content,) = submission(name, Path("test.tsv"), [{"predicted": predicted}]).values()
    assert content == f"index\tprediction\n0\t{told}\n"


def test_submissions_are_in_the_order_of_their_index(capsys):
    predictions = [{"id": "10", "predicted": "1"}, {"id": "9", "predicted": "0"}]
    content = submission("cola", Path("test.tsv"), predictions)
    assert content == {"CoLA.tsv": "index\tprediction\n9\t0\n10\t1\n"}
    assert "test.tsv: 9 examples are not in it, or were left out" in capsys.readouterr().err
    submission("cola", Path("test.tsv"), [{"id": str(i), "predicted": "1"} for i in (1, 0)])
    assert capsys.readouterr().err == ""
    with pytest.raises(UserError, match="numbers its test examples, and one is 'x'"):
        submission("cola", Path("test.tsv"), [{"id": "x", "predicted": "1"}])


def test_other_tasks_export_nothing():
    assert Classification().exports(Path("test.tsv"), [{"predicted": "a"}]) == {}


def test_an_unknown_task_is_told():
    with pytest.raises(UserError, match="no task 'sst'; there are cola, sst2"):
        glue_settings("sst", "glue")


@pytest.fixture(scope="session")  # TFDS takes a name once in a process
def tfds_splits(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a data set with the features of `glue/rte`, prepared by TFDS itself."""
    tfds = pytest.importorskip("tensorflow_datasets")

    class TinyGlue(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self) -> Any:
            features = {
                "sentence1": tfds.features.Text(),
                "sentence2": tfds.features.Text(),
                "label": tfds.features.ClassLabel(names=["entailment", "not_entailment"]),
                "idx": np.int32,
                "words": tfds.features.Sequence(tfds.features.Text()),
            }
            return self.dataset_info_from_configs(features=tfds.features.FeaturesDict(features))

        def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
            return {name: self._generate_examples(name) for name in ("train", "test")}

        def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, Any]]]:
            for idx in range(30):
                label = idx % 2 if split == "train" else -1
                texts = {"sentence1": f"{split} {idx} é", "sentence2": "B", "words": ["x"]}
                yield idx, {**texts, "label": label, "idx": idx}

    folder = tmp_path_factory.mktemp("tfds")
    TinyGlue(data_dir=str(folder)).download_and_prepare()
    return f"tfds:{folder}/tiny_glue/1.0.0"


def test_splits_of_tfds_are_read_and_submitted(tfds_splits: str) -> None:
    task = glue_task("rte", "tfds")
    assert task.train == "tfds:glue/rte/train"
    examples = task.read(Path(f"{tfds_splits}/train"))
    assert len(examples) == 30
    for example in examples:
        index = int(example.id or -1)
        assert (example.text, example.pair) == (f"train {index} é", "B")
        assert example.label == ("entailment", "not_entailment")[index % 2]
    task.check(examples)

    path = Path(f"{tfds_splits}/test")
    tests = task.read(path, labelled=False)
    assert {example.label for example in tests} == {None}
    predictions = [{"id": test.id, "predicted": "entailment"} for test in tests]
    lines = task.exports(path, predictions)["RTE.tsv"].splitlines()
    assert lines[1:] == [f"{index}\tentailment" for index in range(30)]


def test_scores_that_glue_hides_are_not_known(tmp_path: Path) -> None:
    task = glue_task("stsb", "tfds")
    path = tmp_path / "test.jsonl"
    row = {"idx": 0, "sentence1": "a", "sentence2": "b", "label": -1.0}
    path.write_text(json.dumps(row) + "\n" + json.dumps(row | {"label": 3.5}) + "\n")
    assert [test.label for test in task.read(path, labelled=False)] == [None, 3.5]


def test_a_split_that_tfds_lacks_is_told(tfds_splits: str) -> None:
    with pytest.raises(UserError, match=r"no split 'validation'; there are train, test"):
        glue_task("rte", "tfds").read(Path(f"{tfds_splits}/validation"))


def test_tfds_has_parts_of_mnli():
    task = glue_task("mnli", "tfds")
    assert task.dev == "tfds:glue/mnli/validation_matched"
    assert task.also == (
        "tfds:glue/mnli/validation_mismatched",
        "tfds:glue/mnli/test_mismatched",
    )


@pytest.mark.parametrize("name", TASKS)
def test_columns_and_labels_of_tfds_are_those_of_its_builder(name: str, tmp_path: Path) -> None:
    tfds = pytest.importorskip("tensorflow_datasets")
    builder = tfds.builder(f"glue/{name}", data_dir=str(tmp_path))
    features, texts = builder.info.features, [*builder.builder_config.text_features]
    text, pair, label = TASKS[name].tfds_columns
    assert [text, *([pair] if pair else [])] == texts, "in this order"
    assert {*texts, label, "idx"} == set(features)
    if TASKS[name].labels:
        assert tuple(features[label].names) == TASKS[name].tfds_labels


@pytest.mark.parametrize(
    ("name", "count"), [("cola", 8551), ("sst2", 67_349), ("rte", 2490), ("stsb", 5749)]
)
def test_real_files(name: str, count: int, test_data: Path) -> None:
    task = glue_task(name, str(test_data / "glue"))
    examples = task.read(Path(task.train))
    assert len(examples) == count
    task.check(examples)
