"""The report of a fine-tuning run, from predictions of every kind: right, safe, standing alone."""

import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sample_predictions import ROWS, class_rows

from bert_jax import finetune_report
from bert_jax.errors import UserError
from bert_jax.report import write_report
from bert_jax.reporting.kinds import figures


class Page(HTMLParser):
    """The tags, the attributes, the tables and the text of a page."""

    def __init__(self, path: Path):
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.tables: list[list[list[str]]] = []
        self.titles: list[str] = []
        self.text = ""
        self.feed(path.read_text())
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "br"):
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        elif tag == "h2":
            self.titles.append("")

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, "tags are balanced"

    def handle_data(self, data):
        self.text += data
        if "h2" in self.open:
            self.titles[-1] += data
        if "td" in self.open or "th" in self.open:
            self.tables[-1][-1][-1] += data

    def table(self, *header: str) -> list[list[str]]:
        """The rows of the table whose header begins so."""
        for rows in self.tables:
            if rows[0][: len(header)] == list(header):
                return rows[1:]
        raise AssertionError(f"{header} is in none of {[rows[0] for rows in self.tables]}")


SCORES = {
    "classification": {"accuracy": 0.5, "macro_f1": 0.45, "matthews": 0.2},
    "regression": {"pearson": 0.9, "mean_squared_error": 0.5},
    "question_answering": {"exact_match": 0.5, "f1": 0.6},
}


def make_run(
    directory: Path, kind: str = "classification", rows: Any = None, **sets: list[dict[str, Any]]
) -> Path:
    """The directory of a finished run of three epochs; `sets` are predicted beside dev."""
    (directory / "predictions").mkdir(parents=True)
    scores = SCORES.get(kind, {"accuracy": 0.5})
    predicted = {"dev": ROWS[kind] if rows is None else rows} | sets
    config = {
        "task_kind": kind,
        "init_from": "runs/books",
        "scratch": False,
        "steps": 300,
        "model": {"num_hidden_layers": 2, "hidden_size": 128},
    }
    told = {
        "score": {"name": next(iter(scores)), "value": 0.5},
        "best_step": 200,
        "scores": {"dev": scores},
        "training_examples": 2000,
        "examples": {name: len(predictions) for name, predictions in predicted.items()},
        "padding": 0.12,
        "padding_saved": 0.34,
    }
    records: list[dict[str, Any]] = [
        {
            "kind": "train",
            "step": step,
            "phase": step // 101,
            "loss": 2 - step / 300,
            "accuracy": 0.3 + step / 1000,
            "learning_rate": 5e-5 * (1 - step / 300),
            "tokens_per_second": 9e3 + step,
            "mfu": None,
        }
        for step in range(10, 301, 10)
    ]
    for epoch in range(3):
        records.append({"kind": "eval", "step": 100 * (epoch + 1), "phase": epoch, **scores})
    seconds = {"train": 60.0, "eval": 5.0, "report": 1.0}
    records.append({"kind": "time", "step": 300, "session": 1.7e9, "seconds": seconds})
    files = {
        "config.json": json.dumps(config),
        "metrics.json": json.dumps(told),
        "environment.json": json.dumps({"devices": {"cpu": 2}, "python": "3.11"}),
        "metrics.jsonl": lines(records),
    }
    for name, predictions in predicted.items():
        files[f"predictions/{name}.jsonl"] = lines(predictions)
    for name, content in files.items():
        (directory / name).write_text(content)
    return directory


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def percent(value: float) -> str:
    return f"{value:.1%}"


@pytest.mark.parametrize("kind", ROWS)
def test_every_kind_has_a_page_that_stands_alone(tmp_path, kind):
    path = write_report(make_run(tmp_path / kind, kind))
    page = Page(path)
    assert page.open == []
    assert not {"script", "link", "img", "iframe", "object", "embed"} & set(page.tags)
    for name, value in page.attributes:
        assert not name.startswith("on")
        if name in ("href", "src", "xlink:href", "srcset", "action"):
            assert (value or "").startswith("#")
    content = path.read_text()
    assert "http:" not in content
    assert "https:" not in content
    assert all(target.startswith("#") for target in content.split("url(")[1:])
    assert path.stat().st_size < 500_000
    assert {"Results", "Curves", "Where the time went"} < set(page.titles)
    assert len([title for title in page.titles if title.endswith(", dev")]) >= 2
    assert page.text.count("n/a") <= (kind == "parts_of_speech"), "all that is told is known"


def test_the_results_stand_beside_what_needs_no_model(tmp_path):
    from sklearn import metrics

    rows = ROWS["classification"]
    page = Page(write_report(make_run(tmp_path / "run")))
    true = [row["label"] for row in rows]
    most = max(set(true), key=true.count)
    said = [most] * len(true)
    macro = metrics.f1_score(true, said, average="macro", labels=["bad", "good", "mixed"])
    assert page.table("", "dev", "trivial baseline") == [
        ["accuracy", "0.5000", f"{true.count(most) / len(true):.4f}"],
        ["macro f1", "0.4500", f"{macro:.4f}"],
        ["matthews", "0.2000", "0.0000"],
        ["examples", "200", ""],
    ]
    for fact in (
        "from runs/books",
        "300 of 300 steps",
        "best after step 200",
        "2,000 training examples",
        "2 x cpu",
    ):
        assert fact in page.text


def test_classes_are_those_of_sklearn(tmp_path):
    from sklearn import metrics

    rows = ROWS["classification"]
    page = Page(write_report(make_run(tmp_path / "run")))
    labels = ["bad", "good", "mixed"]
    true, said = ([row[name] for row in rows] for name in ("label", "predicted"))
    columns: Any = metrics.precision_recall_fscore_support(true, said, labels=labels)
    assert page.table("class") == [
        [label, percent(p), percent(r), percent(f), f"{n}"]
        for label, p, r, f, n in zip(labels, *columns, strict=True)
    ]
    matrix = metrics.confusion_matrix(true, said, labels=labels)
    assert page.table("true \\ predicted", *labels) == [
        [label, *(f"{count} {count / row.sum():.0%}" for count in row)]
        for label, row in zip(labels, matrix, strict=True)
    ]
    kept = figures(rows, "dev")["classes"]
    assert kept["good"]["f1"] == pytest.approx(columns[2][1])
    assert "Confusion matrix, dev" in page.titles
    sure, right = np.mean([row["probability"] for row in rows]), np.mean(np.equal(true, said))
    assert sure > right
    told = f"The mean probability is {sure:.1%}, and {right:.1%} are right: the model is over"
    assert told in page.text


def test_many_labels_are_shown_by_their_most_confused_pairs(tmp_path):
    rows = class_rows(tuple(f"intent{number}" for number in range(150)), n=1500)
    page = Page(write_report(make_run(tmp_path / "run", rows=rows)))
    pairs = [(row["label"], row["predicted"]) for row in rows if row["label"] != row["predicted"]]
    shown = page.table("true", "predicted", "examples")
    assert "Most confused labels, dev" in page.titles
    assert len(shown) == 20
    assert [int(row[2]) for row in shown] == sorted((int(row[2]) for row in shown), reverse=True)
    assert all(pairs.count((true, said)) == int(count) for true, said, count in shown)
    assert len(page.table("class")) == 100
    assert "The 100 most frequent of 150." in page.text


def test_the_most_confident_errors_come_first_and_are_escaped(tmp_path):
    rows = class_rows(("good", "bad"), n=200)
    surest = {"good": 0.999, "bad": 0.001}
    rows[7] |= {"text": "<b>x</b> & " + "y" * 400, "pair": "<i>second</i>", "label": "bad"}
    rows[7] |= {"predicted": "good", "probabilities": surest}
    path = write_report(make_run(tmp_path / "run", rows=rows))
    errors = Page(path).table("example", "true", "predicted", "probability")
    assert errors[0][1:] == ["bad", "good", "99.9%"]
    _, first, second = errors[0][0].split("\u2022\u00a0")
    assert first.startswith("<b>x</b> & yyy")
    assert first.endswith("y\u2026"), "a long text is cut"
    assert second == "<i>second</i>"
    assert "<b>x" not in path.read_text()
    shares = [float(row[3].rstrip("%")) for row in errors]
    assert shares == sorted(shares, reverse=True)
    assert len(errors) == 20
    wrong = sum(row["label"] != row["predicted"] for row in rows)
    assert f"The 20 most confident errors of {wrong}." in Page(path).text


def test_choices_are_shown_by_their_texts(tmp_path):
    page = Page(write_report(make_run(tmp_path / "run", "multiple_choice")))
    errors = page.table("example", "true")
    assert {row[1] for row in errors} == {"It rains.", "It <shines>."}
    assert "Classes, dev" not in page.titles, "a number of a choice is no class"


def test_values_have_their_largest_errors_and_a_baseline(tmp_path):
    rows = ROWS["regression"]
    page = Page(write_report(make_run(tmp_path / "run", "regression")))
    errors = [abs(float(row[3])) for row in page.table("example", "true", "predicted", "error")]
    expected = sorted((abs(row["predicted"] - row["label"]) for row in rows), reverse=True)
    assert errors == pytest.approx(expected[:20], rel=1e-3)
    variance = np.var([row["label"] for row in rows])
    assert page.table("", "dev")[1] == ["mean squared error", "0.5000", f"{variance:.4f}"]


@pytest.mark.parametrize("kind", ["multilabel", "soft_multilabel"])
def test_labels_of_several_are_those_of_sklearn(tmp_path, kind):
    from sklearn import metrics

    rows = ROWS[kind]
    names = list(rows[0]["probabilities"])
    said = np.array([list(row["probabilities"].values()) for row in rows])
    true = np.array(
        [[*row["label"]] if kind[0] == "s" else [n in row["label"] for n in names] for row in rows]
    )
    hard = true >= 0.5
    columns: Any = metrics.precision_recall_fscore_support(hard, said >= 0.5)
    ordered = [metrics.average_precision_score(hard[:, i], said[:, i]) for i in range(4)]
    shown = Page(write_report(make_run(tmp_path / "run", kind))).table("label", "precision")
    assert [row[:6] for row in shown] == [
        [name, *map(percent, (p, r, f, a)), f"{n}"]
        for name, p, r, f, n, a in zip(names, *columns, ordered, strict=True)
    ]
    for column, values in ((6, true), (7, said)):
        assert [row[column] for row in shown] == [percent(value) for value in values.mean(axis=0)]
    errors = Page(tmp_path / "run/report.html").table("example", "labels")
    gaps = np.abs(said - true)
    worst = [(int(gap.argmax()), index) for index, gap in enumerate(gaps)]
    worst = sorted(worst, key=lambda pair: -gaps[pair[1], pair[0]])[:20]
    assert [row[3] for row in errors] == [
        f"{names[at]}: {percent(said[index, at])}, is {percent(float(true[index, at]))}"
        for at, index in worst
    ]


def test_entities_have_a_line_a_type(tmp_path):
    rows = [
        {
            "text": "Anna of Bonn sees Ben",
            "tokens": ["Anna", "of", "Bonn", "sees", "Ben"],
            "label": ["B-PER", "O", "B-LOC", "O", "B-PER"],
            "predicted": ["B-PER", "O", "B-PER", "O", "B-PER"],
        },
        {"text": "x", "tokens": ["x"], "label": ["O"], "predicted": ["O"]},
    ]
    page = Page(write_report(make_run(tmp_path / "run", "tagging", rows)))
    assert page.table("type") == [
        ["LOC", "0.0%", "0.0%", "0.0%", "1", "0", "0"],
        ["PER", "66.7%", "100.0%", "80.0%", "2", "3", "2"],
        ["all", "66.7%", "66.7%", "66.7%", "3", "3", "2"],
    ]
    (error,) = page.table("errors", "example")
    assert error[0] == "2", "a false one and a missed one"
    shown = error[1].replace("\u00a0", " ")
    assert "Anna PER \u2713 of Bonn LOC \u2717 sees Ben PER \u2713" in shown
    assert "Bonn PER \u2717" in shown


def test_tags_that_are_no_entities_are_classes(tmp_path):
    page = Page(write_report(make_run(tmp_path / "run", "parts_of_speech")))
    assert {row[0] for row in page.table("tag", "precision")} == {
        "NOUN",
        "VERB",
        "ADJ",
        "DET",
        "ADP",
    }
    assert "Entities, dev" not in page.titles
    counts = [int(row[0]) for row in page.table("errors", "example")]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[-1] > 0


def test_answers_are_scored_by_the_length_of_the_true_one(tmp_path):
    page = Page(write_report(make_run(tmp_path / "run", "question_answering")))
    assert page.table("words of the answer") == [
        ["none", "50.0%", "50.0%", "2"],
        ["1", "50.0%", "50.0%", "2"],
        ["3 to 4", "0.0%", "66.7%", "1"],
        ["9 and more", "0.0%", "0.0%", "1"],
    ]
    wrong = page.table("question", "true answers")
    assert [row[3] for row in wrong] == ["0.0%", "0.0%", "0.0%", "66.7%"]
    assert wrong[0][:2] == ["What is it, 2?", "1915"], "the surest of those that are all wrong"
    assert wrong[0][2].replace("\u00a0", " ") == "It was in Munich \u2717 as they say."
    assert page.table("", "dev", "trivial baseline")[0] == ["exact match", "0.5000", "0.3333"]


def test_other_sets_stand_folded_and_unlabelled_ones_have_no_findings(tmp_path):
    unlabelled = [{"text": "x", "predicted": "good", "probabilities": {"good": 1.0}}]
    run = make_run(tmp_path / "run", other=class_rows(n=20), test=unlabelled)
    page = Page(write_report(run))
    assert "What the predictions of other show" in page.text
    assert "Classes, other" in page.titles
    assert not [title for title in page.titles if title.endswith(", test")]


def test_a_new_kind_of_prediction_has_scores_and_curves(tmp_path):
    rows = [{"text": "x", "label": {"a": 1}, "predicted": {"b": 2}}]
    page = Page(write_report(make_run(tmp_path / "run", rows=rows)))
    assert page.table("", "dev")[0] == ["accuracy", "0.5000"]
    assert "Curves" in page.titles


def test_a_run_that_goes_on_is_reported_on(tmp_path):
    run = make_run(tmp_path / "run")
    for file in [run / "metrics.json", *(run / "predictions").iterdir()]:
        file.unlink()
    page = Page(write_report(run))
    assert "no final scores yet" in page.text
    assert "Curves" in page.titles


def test_an_epoch_ends_with_the_last_of_its_evaluations(tmp_path):
    run = make_run(tmp_path / "run")
    steps = [5, 10, 15, 17, 20, 25, 30, 34, 35]
    records = [{"kind": "eval", "step": step, "phase": (step - 1) // 17} for step in steps]
    (run / "metrics.jsonl").write_text(lines(records))
    assert finetune_report.read_run(run).boundaries == [17, 34, 35]


def test_a_model_that_diverged_is_reported_on(tmp_path):
    nan = float("nan")
    row = {"text": "x", "label": "a", "predicted": "a", "probabilities": {"a": nan, "b": nan}}
    other = row | {"label": "b"}
    page = Page(write_report(make_run(tmp_path / "a", rows=[row, other] * 3)))
    assert "Calibration, dev" not in page.titles
    assert page.table("example", "true")[0][3] == "n/a"
    rows = [{"text": "x", "label": 1.0, "predicted": nan}] * 2
    write_report(make_run(tmp_path / "b", "regression", rows))


def test_what_is_left_out_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(finetune_report, "_MOST_EXAMPLES", 50)
    page = Page(write_report(make_run(tmp_path / "run")))
    assert "first 50 examples of a larger set" in page.text
    assert page.table("", "dev")[-1] == ["examples", "200", ""], "though not all were read"
    assert sum(int(row[4]) for row in page.table("class")) == 50
    monkeypatch.setattr(finetune_report, "_MOST_EXAMPLES", 200)
    assert "of a larger set" not in Page(write_report(tmp_path / "run")).text


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", "[]", "not a JSON object"),
        ("metrics.json", "{", "cannot be read"),
        ("environment.json", "1", "not a JSON object"),
        ("metrics.jsonl", "x\n", "line 1"),
        ("predictions/dev.jsonl", "x\n", r"dev\.jsonl:1: not a prediction"),
        ("predictions/dev.jsonl", "[]\n", r"dev\.jsonl:1: not a prediction"),
        (
            "predictions/dev.jsonl",
            lines([ROWS["classification"][0], {"text": "x", "label": "bad", "predicted": "good"}]),
            r"dev\.jsonl:2: not a prediction like that of the first line",
        ),
    ],
)
def test_what_no_run_writes_is_named(tmp_path, name, content, message):
    run = make_run(tmp_path / "run")
    (run / name).write_text(content)
    with pytest.raises(UserError, match=message):
        write_report(run)


def test_a_config_of_any_content_makes_a_page(tmp_path):
    run = make_run(tmp_path / "<script>")
    deep: Any = "<script>"
    for _ in range(50):
        deep = {"<script>": [deep]}
    config = {"task_kind": deep, "init_from": None, "steps": "x", "model": [1], "scratch": deep}
    (run / "config.json").write_text(json.dumps(config))
    told = {"scores": {"dev": {"<script>": deep, "accuracy": 10**400}}, "score": [], "padding": "x"}
    (run / "metrics.json").write_text(json.dumps(told))
    page = Page(write_report(run))
    assert "script" not in page.tags
    assert page.table("", "dev")[1][:2] == ["accuracy", "n/a"]


def test_the_command(tmp_path):
    run = make_run(tmp_path / "run")
    done = subprocess.run(
        [sys.executable, "-m", "bert_jax.report", str(run)], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout.strip()) == (0, str(run / "report.html")), done.stderr
