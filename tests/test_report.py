"""The report of a run: its figures are the metrics', it stands alone, and it is safe to open."""

import dataclasses
import json
import math
import re
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest

from bert_jax import report
from bert_jax.config import Config, Phase, model_size
from bert_jax.errors import UserError
from bert_jax.pretraining import _closing_summary
from bert_jax.report import write_report
from bert_jax.training.page import page

PHASES = (
    Phase(seq_len=128, steps=2700, batch_size=64, max_predictions=20),
    Phase(seq_len=512, steps=300, batch_size=16, max_predictions=76),
)
BASELINES = [
    {"kind": "baseline", "phase": 0, "step": 0, "mlm_accuracy": 0.0591, "nsp_accuracy": 0.5012},
    {"kind": "baseline", "phase": 1, "step": 2700, "mlm_accuracy": 0.0471, "nsp_accuracy": 0.4875},
]
EXAMPLES = [
    {
        "text_with_mask": "returns the [MASK] of the array as a [MASK] of integers .",
        "targets": [
            {"truth": "shape", "predictions": [["shape", 0.43], ["size", 0.2], ["sum", 0.0941]]},
            {"truth": "tuple", "predictions": [["list", 0.5], ["tuple", 0.25], ["set", 0.1]]},
        ],
    },
    {
        "text_with_mask": "this [MASK] is not part of the public api .",
        "targets": [
            {"truth": "module", "predictions": [["function", 0.3], ["class", 0.2], ["is", 0.02]]}
        ],
    },
]


def train_record(step: int, next_sentence: bool) -> dict:
    """What a run like BERT's logs at `step`: a plateau, a fall, and slower steps at length 512."""
    phase = int(step > 2700)
    loss = 5.2 + 4.1 * math.exp(-step / 300) - 0.6 * phase + 0.05 * math.sin(step)
    record = {
        "kind": "train",
        "step": step,
        "phase": phase,
        "time": 1.7e9 + step,
        "mlm_loss": loss,
        "mlm_accuracy": 0.19 * (1 - math.exp(-step / 800)) + 0.004 * math.sin(step),
        "loss": loss + 0.5 * next_sentence,
        "learning_rate": 1e-3 * min(step / 300, (3000 - step) / 2700),
        "grad_norm": 1.4 + 0.3 * math.cos(step),
        "tokens_per_second": 45_000 - 9_000 * phase + 500 * math.sin(step),
        "mfu": 0.41,
        "input_wait": 0.004 + 0.002 * math.sin(step),
    }
    if next_sentence:
        record |= {"nsp_loss": 0.69 - 0.2 * step / 3000, "nsp_accuracy": 0.5 + 0.29 * step / 3000}
    return record


def eval_record(step: int, next_sentence: bool) -> dict:
    train = train_record(step, next_sentence)
    names = ("step", "phase", "time", "mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy")
    record = {name: train[name] for name in names if name in train}
    perplexity = math.exp(record["mlm_loss"])
    return {"kind": "eval", "mlm_perplexity": perplexity, "examples": 900} | record


def make_run(
    directory: Path, *, phases: tuple = PHASES, last: int = 3000, next_sentence: bool = True
) -> Path:
    """A run directory as `train` leaves it after step `last`."""
    directory.mkdir()
    config = Config(model=model_size("tiny"), phases=phases)
    (directory / "config.json").write_text(json.dumps(dataclasses.asdict(config)))
    records = [BASELINES[0]]
    for step in range(20, last + 1, 20):
        records.append(train_record(step, next_sentence))
        if step % 300 == 0:
            records.append(eval_record(step, next_sentence))
        if step == BASELINES[1]["step"]:
            records.append(BASELINES[1])
    if last == 3000:
        seconds = {"corpus": 41.0, "vocabulary": 5.5, "compile": 12.0, "train": 260.0, "eval": 9.5}
        records.append({"kind": "time", "step": last, "session": 1.7e9, "seconds": seconds})
        (directory / "predictions.json").write_text(json.dumps({"examples": EXAMPLES}))
        environment = {"python": "3.11.7", "devices": {"cpu": 8}, "command": ["train", "<b>"]}
        (directory / "environment.json").write_text(json.dumps(environment))
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (directory / "metrics.jsonl").write_text(lines)
    return directory


class Page(HTMLParser):
    """Tables as lists of rows of text, and everything a browser might fetch or run."""

    VOID = ("meta", "br", "hr", "img", "input", "link")

    def __init__(self, path: Path):
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.tables: list[list[list[str]]] = []
        self.text = ""
        self.feed(path.read_text(encoding="utf-8"))
        self.close()

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, "tags are balanced"

    def handle_data(self, data):
        self.text += data
        if "td" in self.open or "th" in self.open:
            self.tables[-1][-1][-1] += data

    def table(self, title: str) -> list[list[str]]:
        """The table whose second column has this title."""
        return next(table for table in self.tables if table[0][1].startswith(title))


def dashed_lines(page: Page) -> int:
    return sum("stroke-dasharray" in value for _, value in page.attributes)


def test_figures_are_the_metrics(tmp_path):
    page = Page(write_report(make_run(tmp_path / "tiny")))
    assert page.open == []
    held_out, batch = eval_record(3000, True), train_record(3000, True)
    assert page.table("held-out") == [
        ["", "held-out, step 3,000", "trivial baseline", "training, last logged"],
        ["MLM accuracy", f"{held_out['mlm_accuracy']:.1%}", "4.7%", f"{batch['mlm_accuracy']:.1%}"],
        ["MLM perplexity", f"{held_out['mlm_perplexity']:,.2f}", "", ""],
        ["MLM loss", f"{held_out['mlm_loss']:.3f}", "", f"{batch['mlm_loss']:.3f}"],
        ["NSP accuracy", f"{held_out['nsp_accuracy']:.1%}", "48.8%", "79.0%"],
        ["NSP loss", f"{held_out['nsp_loss']:.3f}", "", f"{batch['nsp_loss']:.3f}"],
    ]
    first, second = page.table("length")[1:]
    end = eval_record(2700, True)
    assert first[:5] == ["1", "128", "64", "2,700 of 2,700", f"{2700 * 64 * 128:,}"]
    assert first[5:7] == [f"{end['mlm_accuracy']:.1%}", f"{end['nsp_accuracy']:.1%}"]
    assert second[:5] == ["2", "512", "16", "300 of 300", f"{300 * 16 * 512:,}"]
    assert second[8] == "41.0%"
    assert page.table("time")[1][:3] == ["train", "4 min 20 s", "79.3%"]
    assert page.table("time")[-1][:3] == ["all", "5 min 28 s", "100.0%"]
    assert "3,000 of 3,000 steps, finished" in page.text
    assert page.tags.count("svg") == 9
    assert dashed_lines(page) == 9 + 4, "a phase's boundary in each; two baselines, each with a key"


def test_predictions_show_what_was_right_without_colour(tmp_path):
    page = Page(write_report(make_run(tmp_path / "tiny")))
    rows = [[cell.replace("\u00a0", " ") for cell in row] for row in page.tables[-1]]
    assert rows[1] == [
        "returns the shape \u2713 of the array as a tuple \u2717 of integers .",
        "shape \u2713",
        "shape 43% size 20% sum 9%",
    ]
    assert rows[2] == ["tuple \u2717", "list 50% tuple 25% set 10%"]
    assert "Of 3 masked words the model's first guess is right for 1 (\u2713)" in page.text
    assert "one of its first 3 for 2" in page.text


def test_the_page_stands_alone(tmp_path):
    path = write_report(make_run(tmp_path / "tiny"))
    page = Page(path)
    assert not {"script", "link", "img", "iframe", "object", "embed"} & set(page.tags)
    for name, value in page.attributes:
        assert not name.startswith("on")
        if name in ("href", "src", "xlink:href", "srcset", "action"):
            assert value.startswith("#")
    text = path.read_text()
    assert "http:" not in text
    assert "https:" not in text
    assert "@import" not in text
    assert all(target.startswith("#") for target in text.split("url(")[1:])
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids)), "no two charts share an id"


def test_equal_runs_give_equal_bytes(tmp_path):
    run = make_run(tmp_path / "tiny")
    first = write_report(run).read_bytes()
    assert write_report(run, tmp_path / "again.html").read_bytes() == first


def test_tokens_of_a_packed_run_are_at_most_so_many(tmp_path):
    run = make_run(tmp_path / "run")
    unpacked = Page(write_report(run)).table("length")[1][4]
    config = json.loads((run / "config.json").read_text())
    config["data"]["packing"] = True
    (run / "config.json").write_text(json.dumps(config))
    page = Page(write_report(run))
    assert page.table("length")[1][4] == f"at most {unpacked}"
    assert "at most" in page.text.partition("FLOPs")[0]


def test_a_run_that_went_on_in_another_environment_says_so(tmp_path):
    run = make_run(tmp_path / "run")
    told = "begun on other devices or with other versions"
    assert told not in Page(write_report(run)).text
    path = run / "environment.json"
    environment = json.loads(path.read_text())
    path.write_text(json.dumps({**environment, "earlier": [{"devices": {"Before": 4}}]}))
    page = Page(write_report(run))
    assert told in page.text
    assert '"Before": 4' in page.text


def test_hostile_text_stays_text(tmp_path):
    hostile = "<script>alert(1)</script>\"'&<img src=x onerror=alert(1)>\ud800"
    run = make_run(tmp_path / "<b onclick=alert(1)>")
    example = {
        "text_with_mask": hostile + "[MASK]" + hostile,
        "targets": [{"truth": hostile, "predictions": [[hostile, 0.5]]}],
    }
    (run / "predictions.json").write_text(json.dumps({"examples": [example]}))
    (run / "environment.json").write_text(
        json.dumps({hostile: hostile, "devices": {hostile: hostile}})
    )
    with (run / "metrics.jsonl").open("a") as lines:
        print(
            json.dumps({"kind": "time", "step": 1, "session": 1.0, "seconds": {hostile: 3.0}}),
            file=lines,
        )
        print(json.dumps({"kind": "eval", "step": 3000, "mlm_loss": hostile}), file=lines)
    page = Page(write_report(run))
    assert not {"script", "img", "b"} & set(page.tags)
    assert page.open == []
    assert page.text.count("<script>alert(1)</script>") >= 6


def test_a_run_in_progress(tmp_path):
    run = make_run(tmp_path / "run", last=700)
    with (run / "metrics.jsonl").open("a") as lines:
        lines.write('{"kind": "train", "st')
    page = Page(write_report(run))
    assert "700 of 3,000 steps, in progress or stopped" in page.text
    assert page.table("held-out")[0][1] == "held-out, step 600"
    assert page.table("length")[1][3] == "700 of 2,700"
    assert page.table("length")[2][3] == "0 of 300"
    assert page.table("length")[2][5] == "n/a"
    assert dashed_lines(page) == 4, "the second phase has not begun"


def test_an_evaluation_stands_beside_the_baseline_of_its_own_phase(tmp_path):
    run = make_run(tmp_path / "run", last=2760)
    page, told = Page(write_report(run)), _closing_summary(run, finished=False)
    rows = page.table("held-out, step 2,700")
    assert [row[2] for row in rows[1:]] == ["5.9%", "", "", "50.1%", ""]
    assert "(most frequent token: 5.9%)" in told
    assert "(most frequent label: 50.1%)" in told


def test_steps_that_were_saved_are_told_though_not_logged(tmp_path):
    run = make_run(tmp_path / "run", last=2720)
    with (run / "metrics.jsonl").open("a") as lines:
        for session, step in ((1.0, 2790), (2.0, 2710), (2.0, 2730)):
            record = {"kind": "time", "step": step, "session": session, "seconds": {"train": 3.0}}
            print(json.dumps(record), file=lines)
    page = Page(write_report(run))
    assert "2,730 of 3,000 steps, in progress or stopped" in page.text
    assert page.table("length")[2][3:5] == ["30 of 300", f"{30 * 16 * 512:,}"]


def test_a_run_before_its_first_line(tmp_path):
    run = make_run(tmp_path / "run", last=0)
    (run / "metrics.jsonl").unlink()
    assert "No step is logged yet." in Page(write_report(run)).text


def test_a_run_without_next_sentence_prediction(tmp_path):
    page = Page(write_report(make_run(tmp_path / "run", next_sentence=False)))
    assert [row[0] for row in page.table("held-out")[1:]] == [
        "MLM accuracy",
        "MLM perplexity",
        "MLM loss",
    ]
    assert page.tags.count("svg") == 7


def test_a_run_of_one_phase_with_numbers_that_are_none(tmp_path):
    run = make_run(tmp_path / "run", phases=(dataclasses.replace(PHASES[0], steps=3000),), last=200)
    with (run / "metrics.jsonl").open("a") as lines:
        print(json.dumps({"kind": "eval", "step": 200, "mlm_loss": None}), file=lines)
        print(json.dumps({"kind": "train", "step": 200, "phase": 0, "loss": None}), file=lines)
    page = Page(write_report(run))
    assert page.table("held-out")[1] == ["MLM loss", "n/a", "", ""]
    assert len(page.table("length")) == 2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", None, "no run directory, for it has no config.json"),
        ("config.json", "{", r"config\.json: cannot be read"),
        ("config.json", "[]", r"config\.json: not a JSON object"),
        ("config.json", "{}", r"config\.json: not a run's config \(model, phases mis"),
        ("config.json", '{"model": {"x": 1}, "phases": []}', "not a run's config .*'x'"),
        ("config.json", '{"model": {"hidden_size": "1"}, "phases": []}', "hidden_size is '1'"),
        ("config.json", '{"model": {}, "phases": [{"steps": 0}]}', "must be positive"),
        ("predictions.json", '{"examples": [{"text_with_mask": 1, "targets": []}]}', "predictions"),
        ("predictions.json", '{"examples": {}}', "not a run's predictions"),
        ("metrics.jsonl", "x\n", "line 1"),
    ],
)
def test_what_is_no_run_is_named(tmp_path, name, content, message):
    run = make_run(tmp_path / "run", last=20)
    if content is None:
        (run / name).unlink()
    else:
        (run / name).write_text(content)
    with pytest.raises(UserError, match=message):
        write_report(run)
    assert not (run / "report.html").exists()


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bert_jax.report", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_command(tmp_path):
    run = make_run(tmp_path / "run", last=60)
    done = command(str(run), f"--output={tmp_path / 'page.html'}")
    assert (done.returncode, done.stdout.strip()) == (0, str(tmp_path / "page.html"))
    assert Page(tmp_path / "page.html").open == []


@pytest.mark.parametrize("arguments", [["nowhere"], [], ["a", "--outptu=b"]])
def test_bad_usage_is_a_line_and_exit_code_2(arguments):
    done = command(*arguments)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ")


def test_a_report_takes_the_place_of_the_last_one_when_it_is_whole(tmp_path):
    """What stands under the name is never half a page: the last one's file is not written to."""
    run = make_run(tmp_path / "run")
    before = write_report(run).read_bytes()
    (tmp_path / "last.html").hardlink_to(run / "report.html")
    (run / "metrics.jsonl").unlink()
    assert write_report(run).read_bytes() != before
    assert (tmp_path / "last.html").read_bytes() == before
    assert not list(run.glob("*.tmp"))


def test_an_output_that_is_a_link_stays_one(tmp_path):
    run = make_run(tmp_path / "run")
    (tmp_path / "link.html").symlink_to(tmp_path / "page.html")
    write_report(run, tmp_path / "link.html")
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "page.html").read_bytes() == write_report(run).read_bytes()


def test_an_output_that_cannot_be_written(tmp_path):
    run = make_run(tmp_path / "run", last=20)
    with pytest.raises(UserError, match=r"nowhere/page\.html: No such file"):
        write_report(run, tmp_path / "nowhere" / "page.html")


def test_what_a_library_lacks_is_told_in_its_words(tmp_path, monkeypatch):
    """Matplotlib without a folder for its cache: an error without a number has no text of one."""

    def drawn(directory: Path) -> str:
        raise OSError("Matplotlib requires access to a writable cache directory")

    monkeypatch.setattr(report, "_page", drawn)
    with pytest.raises(UserError, match="Matplotlib requires access to a writable cache"):
        write_report(make_run(tmp_path / "run"))


def test_help_is_quick_and_loads_nothing_heavy():
    start = time.perf_counter()
    done = command("--help")
    assert done.returncode == 0
    assert "runs/books/report.html" in done.stdout
    assert time.perf_counter() - start < 5, "1.5 s on an idle machine"
    heavy = (
        "import sys, bert_jax.report; print({'jax', 'matplotlib', 'tensorflow'} & {*sys.modules})"
    )
    loaded = subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True)
    assert loaded.stdout.strip() == "set()"


@pytest.mark.parametrize("name", ["texts", "guesses"])
def test_texts_are_laid_out_in_the_direction_of_their_script(name):
    """From left to right, an Arabic sentence has its full stop where it begins."""
    rules = re.findall(r"([^{}]+)\{([^{}]*)\}", page("", ""))
    of_cells = "".join(style for cells, style in rules if f".{name} td" in cells)
    assert "unicode-bidi: plaintext" in of_cells
    assert "text-align: start" in of_cells
    assert "text-align: left" not in of_cells
