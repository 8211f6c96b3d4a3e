"""The command `predict`: every source of text, every form of answer, and its mistakes."""

import gzip
import io
import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from peer_models import peer, save_peer

from bert_jax import predict
from bert_jax.allocator import SETTINGS
from bert_jax.errors import UserError, run_main
from bert_jax.prediction import command
from bert_jax.prediction.predictor import Predictor
from bert_jax.tasks.classification import Classification
from bert_jax.tasks.registry import task_to_json

ROOT = Path(__file__).parent.parent
COMMAND = [sys.executable, "-m", "bert_jax.predict"]
LINES = ["the river [MASK].", "a small [MASK], under a [MASK]!", "Green [MASK]"]


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    tags, labels = {0: "O", 1: "B-PER", 2: "I-PER"}, {0: "bad", 1: "fair", 2: "good"}
    made = {
        "pretrained": peer("BertForPreTraining"),
        "encoder": peer("BertModel"),
        "classify": peer("BertForSequenceClassification", id2label=labels),
        "tag": peer("BertForTokenClassification", id2label=tags),
        "answer": peer("BertForQuestionAnswering"),
    }
    return {name: str(save_peer(model, folder / name)) for name, model in made.items()}


def run(*words: object, **arguments: Any) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, *map(str, words)]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=500, **arguments
    )


@pytest.fixture
def said(monkeypatch, capsys):
    """A function from the words of a command line, and standard input, to what it prints."""

    def call(*words: object, stdin: str = "") -> str:
        monkeypatch.setattr(sys, "argv", ["predict", *map(str, words)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        predict.main()
        return capsys.readouterr().out

    return call


@pytest.fixture
def objects(said):
    """As `said`, for JSON lines."""

    def call(*words: object, stdin: str = "") -> list[dict[str, Any]]:
        return [json.loads(line) for line in said(*words, stdin=stdin).splitlines()]

    return call


def test_arguments_to_json_lines_and_a_table(models):
    result = run("fill-mask", models["pretrained"], *LINES, "--top=3")
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    assert [answer["text"] for answer in answers] == LINES
    assert [len(mask) for answer in answers for mask in answer["masks"]] == [3] * 4
    result = run("fill-mask", models["pretrained"], *LINES, "--top=3", "--format=table")
    header, *rows = result.stdout.splitlines()
    assert header.split() == ["mask", "pieces", "text"]
    best = answers[1]["masks"][1][0]
    assert rows[2].startswith(f"2     {best['piece']} {best['probability']:.4f}  ")
    assert rows[3].endswith(answers[2]["filled"])


@pytest.mark.skipif(sys.platform != "linux", reason="the settings are glibc's")
def test_many_texts_have_the_fast_allocator_and_a_few_start_at_once(models):
    fresh = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    fresh["BERT_JAX_ALLOCATOR"] = ""
    wanted = ("next-sentence", models["pretrained"])
    many = run(*wanted, input="a river\ta stone\n", env=fresh)
    few = run(*wanted, "a river", "a stone", env=fresh)
    first, second = (json.loads(result.stdout)["probability"] for result in (many, few))
    np.testing.assert_allclose(first, second, atol=1e-6)
    assert ["allocator: " in result.stderr for result in (many, few)] == [True, False]


def test_the_dtype_is_a_matter_of_digits(models, objects):
    wanted = ("next-sentence", models["pretrained"], "a river", "a stone")
    whole, named, half = (
        objects(*wanted, *more) for more in ([], ["--dtype=float32"], ["--dtype=bfloat16"])
    )
    assert whole == named
    assert 0 < abs(half[0]["probability"] - whole[0]["probability"]) < 0.02


def test_every_source_gives_the_same(models, objects, tmp_path):
    text = "\n".join(LINES) + "\n"
    (tmp_path / "lines.txt").write_text("\ufeff" + text.replace("\n", "\r\n"))
    with gzip.open(tmp_path / "lines.txt.gz", "wt") as file:
        file.write(text)
    rows = [json.dumps({"id": 1, "sentence": line}) for line in LINES]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows) + "\n")
    (tmp_path / "rows.json").write_text(f"[{','.join(rows)}]")
    (tmp_path / "rows.CSV").write_text("sentence\n" + "".join(f'"{line}"\n' for line in LINES))
    ask = ("fill-mask", models["pretrained"])
    expected = objects(*ask, *LINES)
    found = [
        objects(*ask, stdin=text),
        objects(*ask, f"--input={tmp_path}/lines.txt"),
        objects(*ask, f"--input={tmp_path}/lines.txt.gz"),
        objects(*ask, f"--input={tmp_path}/rows.jsonl", "--columns=sentence"),
        objects(*ask, f"--input={tmp_path}/rows.json", "--columns=sentence"),
        objects(*ask, f"--input={tmp_path}/rows.CSV", "--columns=sentence"),
    ]
    for answers in found:
        assert [a["text"] for a in answers] == LINES
        for ours, theirs in zip(answers, expected, strict=True):
            for mine, other in zip(ours["masks"], theirs["masks"], strict=True):
                assert [p["piece"] for p in mine] == [p["piece"] for p in other]
                first, second = ([p["probability"] for p in mask] for mask in (mine, other))
                np.testing.assert_allclose(first, second, atol=1e-6)


def test_texts_may_stand_behind_options(models, objects):
    first, last = ("a [MASK] stone", "--top=1"), ("--top=1", "a [MASK] stone")
    assert objects("fill-mask", models["pretrained"], *first) == objects(
        "fill-mask", models["pretrained"], *last
    )


def test_pairs_come_as_two_arguments_with_a_tab_or_with_a_shared_text(models, objects, tmp_path):
    pairs = [("the river.", "a bird"), ("small stones", "a bird")]
    ask = ("next-sentence", models["pretrained"])
    (tmp_path / "pairs.tsv").write_text("pair\ttext\n" + "".join(f"{b}\t{a}\n" for a, b in pairs))
    expected = objects(*ask, *(text for pair in pairs for text in pair))
    assert [(answer["text"], answer["pair"]) for answer in expected] == pairs
    for found in (
        objects(*ask, stdin="".join(f"{a}\t{b}\n" for a, b in pairs)),
        objects(*ask, *(a for a, _ in pairs), "--pair=a bird"),
        objects(*ask, f"--input={tmp_path}/pairs.tsv"),
    ):
        for answer, wanted in zip(found, expected, strict=True):
            assert answer["pair"] == wanted["pair"]
            assert answer["probability"] == pytest.approx(wanted["probability"], abs=1e-6)


def test_a_long_stream_is_answered_while_it_comes_and_in_its_order(models):
    process = subprocess.Popen(
        [*COMMAND, "next-sentence", models["pretrained"]],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin
    assert process.stdout
    assert process.stderr
    lines = [f"{'bird ' * (i % 7)}stone {i}\tlight {i}" for i in range(1100)]
    for line in lines[:1030]:
        process.stdin.write(line + "\n")
    process.stdin.flush()
    first = [json.loads(process.stdout.readline())["pair"] for _ in range(1024)]
    for line in lines[1030:]:
        process.stdin.write(line + "\n")
    process.stdin.close()
    rest = [json.loads(line)["pair"] for line in process.stdout]
    assert first + rest == [f"light {i}" for i in range(1100)]
    assert "1,100 texts in " in process.stderr.read()
    assert process.wait(60) == 0


class _Echo(Predictor):
    """Says what it is asked, and how many items are waiting for an answer."""

    columns, header, max_length = ("text",), ("text",), 40
    waiting = most = 0

    def items(self, count: int):
        for number in range(count):
            self.waiting += 1
            self.most = max(self.most, self.waiting)
            yield number

    def predict(self, items):
        self.waiting -= len(items)
        return [{"text": str(item)} for item in items]

    def rows(self, prediction):
        return [(prediction["text"],)]


def test_no_more_than_a_chunk_is_in_memory(tmp_path, capsys):
    echo = _Echo()
    words = ["embed", "MODEL", f"--output={tmp_path}/out.jsonl", "--input=none"]
    arguments = predict._parser().parse_args(words)
    command._stream(arguments, echo, echo.items(100_000))
    assert echo.most == echo.chunk
    with (tmp_path / "out.jsonl").open() as lines:
        assert [json.loads(line)["text"] for line in lines] == [str(i) for i in range(100_000)]
    assert "100,000 texts in " in capsys.readouterr().err


def test_whoever_reads_may_leave(models):
    command = " ".join([*COMMAND, "next-sentence", models["pretrained"]])
    text = "the river\ta bird\n" * 3000
    result = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command} | head -n 2"],
        cwd=ROOT,
        input=text,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert len(result.stdout.splitlines()) == 2
    assert "Error" not in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full, as on macOS")
def test_a_full_disk_is_told_in_a_line(models, monkeypatch, capsys):
    words = ["next-sentence", models["pretrained"], "a stone", "a bird"]
    monkeypatch.setattr(sys, "argv", ["predict", *words, "--output=/dev/full"])
    with pytest.raises(SystemExit) as end:
        run_main(predict.main)
    assert end.value.code == 2
    told = "No space left on device; make room and ask again\n"
    assert capsys.readouterr().err == f"error: /dev/full: {told}"
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [*COMMAND, *words], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert result.returncode == 2
    assert result.stderr.endswith(f"error: standard output: {told}")


def read_until(terminal: int, wanted: str, seconds: float = 120) -> str:
    """What a terminal shows up to `wanted`."""
    shown, end = "", time.monotonic() + seconds
    while wanted not in shown and time.monotonic() < end:
        if select.select([terminal], [], [], 1)[0]:
            shown += os.read(terminal, 65536).decode()
    assert wanted in shown, shown
    return shown


def test_a_person_is_asked_until_the_end_of_input(models):
    ours, theirs = pty.openpty()
    command = [*COMMAND, "answer", models["answer"], "--context=the small bird walks"]
    process = subprocess.Popen(command, cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    read_until(ours, "question > ")
    os.write(ours, b"who walks?\n")
    assert "probability" in read_until(ours, "question > ")
    os.write(ours, b"\n")  # nothing is asked again
    read_until(ours, "question > ")
    os.write(ours, b"where?\n")
    assert "probability" not in read_until(ours, "question > ")  # the header comes once
    os.write(ours, b"\x04")
    assert process.wait(60) == 0
    os.close(ours)


def test_a_mistake_does_not_end_the_conversation_and_an_interrupt_does(models):
    ours, theirs = pty.openpty()
    command = [*COMMAND, "fill-mask", models["pretrained"]]
    process = subprocess.Popen(command, cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    read_until(ours, "text > ")
    os.write(ours, b"no mask\n")
    assert "error: the text: no [MASK]" in read_until(ours, "text > ")
    os.write(ours, b"a [MASK]\n")
    assert "pieces" in read_until(ours, "text > ")
    time.sleep(1)  # a signal between a prompt and its wait is seen with the next key only
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    os.close(ours)


def test_classify_names_labels(models, objects, said):
    answers = objects("classify", models["classify"], "the river", "small birds", "a")
    for answer in answers:
        assert set(answer["probabilities"]) == {"bad", "fair", "good"}
        assert answer["probability"] == max(answer["probabilities"].values())
    table = said("classify", models["classify"], "the river", "--format=table")
    assert table.splitlines()[1].startswith(answers[0]["predicted"])
    [answer] = objects("classify", models["classify"], "the river", "--pair=a bird")
    assert answer["pair"] == "a bird"


def test_tag_and_answer(models, objects, said, tmp_path):
    [sentence] = objects("tag", models["tag"], "Small birds, a house.")
    assert sentence["tokens"] == ["Small", "birds", ",", "a", "house", "."]
    assert len(sentence["predicted"]) == 6
    assert said("tag", models["tag"], "a bird", "--format=table").startswith("tags")
    context = "the river walks under a small green light"
    [answer] = objects("answer", models["answer"], "who walks?", context)
    assert context[answer["start"] : answer["end"]] == answer["predicted"]
    assert len(answer["n_best"]) == 5
    row = json.dumps({"question": "who walks?", "context": context})
    (tmp_path / "asked.jsonl").write_text(row + "\n")
    [again] = objects("answer", models["answer"], f"--input={tmp_path}/asked.jsonl", "--top=2")
    assert again["predicted"] == answer["predicted"]
    assert len(again["n_best"]) == 2


def test_vectors_as_arrays(models, objects, said, tmp_path):
    (tmp_path / "lines.txt").write_text("".join(f"{'bird ' * (i % 9)}stone\n" for i in range(70)))
    ask = ("embed", models["encoder"], f"--input={tmp_path}/lines.txt", "--batch_size=8")
    expected = np.array([answer["vector"] for answer in objects(*ask)])
    said(*ask, f"--output={tmp_path}/v.npy")
    vectors = np.load(tmp_path / "v.npy")
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    pieces = objects(*ask, "--pooling=none")
    said(*ask, "--pooling=none", f"--output={tmp_path}/p.npy")
    vectors, offsets = np.load(tmp_path / "p.npy"), np.load(tmp_path / "p.offsets.npy")
    assert offsets.dtype == np.int64
    assert len(offsets) == 71
    for i, answer in enumerate(pieces):
        found = vectors[offsets[i] : offsets[i + 1]]
        assert len(found) == len(answer["tokens"])
        np.testing.assert_allclose(found, answer["vectors"], atol=1e-6)


@pytest.mark.parametrize(
    ("words", "stdin", "told"),
    [
        (["fill-mask", "encoder", "a [MASK]"], "", "has no masked-LM head"),
        (["next-sentence", "encoder", "a", "b"], "", "has no next-sentence head"),
        (["classify", "pretrained", "a"], "", "has no head of a task"),
        (["classify", "tag", "a"], "", "which 'tag' is for, and not 'classify'"),
        (["answer", "classify", "a", "b"], "", "which 'classify' is for"),
        (["fill-mask", "pretrained"], "a [MASK]\n\nb", "standard input:2: the text is empty"),
        (["fill-mask", "pretrained"], "a [MASK]\nb\n", "standard input:2: no [MASK]"),
        (["next-sentence", "pretrained"], "a b\n", "standard input:1: 1 texts, and 2 are"),
        (["next-sentence", "pretrained", "a", "b", "c"], "", "3 texts are given"),
        (["classify", "classify", "a", " "], "", "argument 2: the text is empty"),
        (["classify", "classify", "a", "--input=b"], "", "give texts or --input, not both"),
        (["classify", "classify", "--input=/none.txt"], "", "/none.txt: cannot be read"),
        (["embed", "encoder", "a", "--layers=7"], "", "there is no layer 7"),
        (["embed", "encoder", "a", "--format=npy"], "", "give --output=NAME.npy"),
        (["embed", "encoder", "a", "--output=/none/v.npy"], "", "/none/v.npy: No such file"),
        (["embed", "encoder", "a", "--output=/none/v.txt"], "", "/none/v.txt: No such file"),
        (["embed", "encoder", "a", "--max_length=41"], "", "takes 8 to 40 pieces"),
        (["embed", "encoder", "a", "--columns=a,b"], "", "embed takes 1: text"),
        (["classify", "classify", "a", "--columns=a,b,c"], "", "a text, maybe a pair"),
        (["classify", "classify", "a", "--output=a.npy"], "", "only embed writes arrays"),
        (["classify", "classify", "a", "--output=a.jsonl.gz"], "", "are not compressed; leave .gz"),
    ],
)
def test_mistakes_are_told(words, stdin, told, models, said):
    words = [words[0], models[words[1]], *words[2:]]
    with pytest.raises(UserError) as error:
        said(*words, stdin=stdin)
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["guess", "MODEL"], "invalid choice: 'guess'"),
        (["fill-mask"], "MODEL"),
        (["fill-mask", "MODEL", "--pot=1", "a"], "unrecognized arguments: --pot=1"),
        (["fill-mask", "MODEL", "a", "--top=0"], "'0' is not a number from 1 on"),
        (["embed", "MODEL", "a", "--weights=a"], "'a' are not numbers with commas"),
        (["classify", "MODEL", "a", "--pair="], "argument --pair: is empty"),
        (["answer", "MODEL", "a", "--context= "], "argument --context: is empty"),
        (["fill-mask", "no/such", "a [MASK]"], "no/such: no such file or directory"),
    ],
)
def test_mistakes_are_one_line_and_an_exit_code(words, told, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["predict", *words])
    with pytest.raises(SystemExit) as end:
        run_main(predict.main)
    err = capsys.readouterr().err
    assert end.value.code == 2
    assert err.startswith("error: ")
    assert told in err
    assert len(err.splitlines()) == 1


def test_what_is_not_allowed_is_one_line(capsys):
    def main() -> None:
        raise PermissionError(13, "Permission denied", "run/checkpoints")

    with pytest.raises(SystemExit) as end:
        run_main(main)
    assert end.value.code == 2
    assert "error: run/checkpoints: Permission denied" in capsys.readouterr().err


def test_what_is_no_text_is_told(models, said, monkeypatch, tmp_path):
    (tmp_path / "latin").write_bytes("a [MASK]\ncaf\xe9".encode("latin-1"))
    with pytest.raises(UserError, match="latin:2: not UTF-8"):
        said("fill-mask", models["pretrained"], f"--input={tmp_path}/latin")
    monkeypatch.setattr(sys, "argv", ["predict", "embed", models["encoder"]])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"river\n" * 9000 + b"\xff")))
    with pytest.raises(UserError, match="standard input:9001: not UTF-8"):
        predict.main()


def test_a_mistake_leaves_the_files_that_are_there(models, said, tmp_path):
    given, answers = tmp_path / "given.jsonl", tmp_path / "answers.jsonl"
    given.write_text('{"text": "a stone"}\n')
    answers.write_text("of yesterday\n")
    ask = ("classify", models["classify"], f"--input={given}")
    with pytest.raises(UserError, match="is the file of --input"):
        said(*ask, f"--output={given}")
    with pytest.raises(UserError, match="no column 'review'"):
        said(*ask, "--columns=review", f"--output={answers}")
    assert given.read_text() == '{"text": "a stone"}\n'
    assert answers.read_text() == "of yesterday\n"


def test_files_need_not_name_the_columns_that_the_task_has_names_for(
    models, objects, tmp_path, monkeypatch
):
    monkeypatch.setenv("HOME", str(tmp_path))
    model = shutil.copytree(models["classify"], tmp_path / "model")
    labels, names = ("bad", "fair", "good"), ("id", "", "sentence")
    task = Classification(labels=labels, header=names, text_column="sentence", max_length=40)
    (model / "task.json").write_text(json.dumps(task_to_json(task)))
    (tmp_path / "plain.tsv").write_text("1\t0\ta stone\n2\t1\tthe river\n")
    (tmp_path / "named.tsv").write_text("text\na stone\nthe river\n")
    for more in (
        [f"--input={tmp_path}/plain.tsv"],
        [f"--input={tmp_path}/named.tsv", "--columns=text"],
    ):
        answers = objects("classify", "~/model", *more)
        assert [answer["text"] for answer in answers] == ["a stone", "the river"]


def test_a_model_of_pairs_is_not_asked_of_single_texts(models, objects, tmp_path):
    model = shutil.copytree(models["classify"], tmp_path / "model")
    task = Classification(labels=("bad", "fair", "good"), pair_column="pair", max_length=40)
    (model / "task.json").write_text(json.dumps(task_to_json(task)))
    (tmp_path / "a.csv").write_text("text,pair,why\na stone,the river,so\n")
    ask = ("classify", model, f"--input={tmp_path}/a.csv")
    with pytest.raises(UserError, match=r"--columns=why: .* was fine-tuned on pairs of texts"):
        objects(*ask, "--columns=why")
    for more in ([], ["--columns=text,pair"], ["--columns=text", "--pair=the river"]):
        (answer,) = objects(*ask, *more)
        assert (answer["text"], answer["pair"]) == ("a stone", "the river")


@pytest.mark.parametrize(("command", "cut"), [("classify", True), ("tag", 60 - 38)])
def test_longer_texts_are_counted(command, cut, models, said, monkeypatch, capsys):
    texts = ["bird " * 60, "a stone"]
    monkeypatch.setattr(sys, "argv", ["predict", command, models[command], *texts])
    predict.main()
    out, err = capsys.readouterr()
    assert err == "1 of 2 texts were longer than 40 pieces and were cut\n"
    assert [json.loads(line).get("cut") for line in out.splitlines()] == [cut, None]


def test_the_help_teaches_with_examples():
    for words in (["--help"], ["embed", "--help"]):
        result = run(*words)
        assert result.returncode == 0
        assert ("examples:" in result.stdout) or ("--pooling" in result.stdout)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("classify", ["a text a line;", ".parquet by columns"]),
        ("tag", ["where it ends in .txt", ".conll", "where --columns is given", "lists of tokens"]),
        ("answer", ["SQuAD's .json", "a tab and its context"]),
    ],
)
def test_the_help_tells_the_files_that_a_command_reads(name, words, capsys):
    with pytest.raises(SystemExit):
        predict._parser().parse_args([name, "--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert all(word in told for word in words)
