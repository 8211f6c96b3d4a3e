"""`prepare`, stopped or failed midway and run again, makes what it would have made."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from small_corpus import VOCAB_SIZE, contents, make_documents, write_lines

from bert_jax.config import CorpusConfig

SCRIPT = """
from bert_jax import prepare
from bert_jax.data import corpus, preparation
from bert_jax.errors import run_main
corpus.UNIT_BYTES, preparation.SHARD_TEXT_BYTES = 2**13, 2**16
run_main(prepare.main)
"""


def start(corpus: CorpusConfig, output: Path, before: str = "") -> subprocess.Popen[str]:
    settings = dataclasses.asdict(corpus)
    flags = [f"--{key}={settings[key]}" for key in ("source", "sentences", "heldout_fraction")]
    flags += [f"--vocab_size={VOCAB_SIZE}", "--workers=2"]
    return subprocess.Popen(
        [sys.executable, "-c", before + SCRIPT, *flags, f"--output={output}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    out, err = process.communicate(timeout=120)
    assert "Traceback" not in err
    return process.returncode, out + err


def wait_for(condition: Callable[[], object], process: subprocess.Popen[str]) -> None:
    while not condition():
        assert process.poll() is None, "it was over before it could be stopped"
        time.sleep(0.002)


def children(process: subprocess.Popen[str]) -> list[int]:
    return [
        int(pid)
        for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    ]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[CorpusConfig, dict[str, str]]:
    """A corpus, and what an uninterrupted run makes of it."""
    folder = tmp_path_factory.mktemp("finished")
    corpus = write_lines(folder / "corpus.txt", make_documents(800))
    code, told = finish(start(corpus, folder / "out"))
    assert code == 0, told
    assert f"--config.data.dir={folder / 'out'}" in told
    return corpus, contents(folder / "out")


@pytest.mark.parametrize(
    ("end", "moment"),
    [
        (signal.SIGKILL, "text/unit-000009.npz"),
        (signal.SIGKILL, "done/tokenizer"),
        (signal.SIGKILL, "group-00002.json"),
        (signal.SIGINT, "text/unit-000001.npz"),  # a second worker is still starting
        (signal.SIGINT, "group-00001.json"),
    ],
)
def test_stopped_and_run_again(
    finished: tuple[CorpusConfig, dict[str, str]], tmp_path: Path, end: signal.Signals, moment: str
) -> None:
    corpus, expected = finished
    output, partial = tmp_path / "out", tmp_path / "out.partial"
    process = start(corpus, output)
    wait_for((partial / moment).exists, process)
    workers = children(process)
    os.killpg(process.pid, end) if end == signal.SIGINT else process.kill()
    code, told = finish(process)
    assert not output.exists()
    if end == signal.SIGINT:
        assert code == 130
        assert "the same command goes on" in told
    deadline = time.time() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.time() < deadline, "workers outlive their parent"
        time.sleep(0.01)
    made = {path: path.stat().st_mtime_ns for path in partial.rglob("*.*") if path.is_file()}
    process = start(corpus, output)
    redone = set()
    while process.poll() is None:
        for path, made_at in made.items():
            # What is merged may be removed at any moment.
            with contextlib.suppress(FileNotFoundError):
                if path.suffix == ".npz" and path.stat().st_mtime_ns != made_at:
                    redone.add(path)
        time.sleep(0.05)
    code, told = finish(process)
    assert code == 0, told
    assert contents(output) == expected
    assert not redone, "finished units are kept"
    if moment.startswith("group"):
        kept = output / "train-00001.tokens.npy"
        assert kept.stat().st_mtime_ns == made[partial / "done" / kept.name]


def test_a_killed_worker(finished: tuple[CorpusConfig, dict[str, str]], tmp_path: Path) -> None:
    process = start(finished[0], tmp_path / "out")
    wait_for((tmp_path / "out.partial/text/unit-000003.npz").exists, process)
    os.kill(children(process)[-1], signal.SIGKILL)
    code, told = finish(process)
    assert code == 2
    assert "error: a worker process was killed" in told


def test_one_process_at_a_time(
    finished: tuple[CorpusConfig, dict[str, str]], tmp_path: Path
) -> None:
    process = start(finished[0], tmp_path / "out")
    wait_for((tmp_path / "out.partial/text/unit-000003.npz").exists, process)
    code, told = finish(start(finished[0], tmp_path / "out"))
    assert code == 2
    assert "another process is at work" in told
    assert finish(process)[0] == 0


@pytest.mark.parametrize("limit", [2**12, 2**14])
def test_a_full_disk(
    finished: tuple[CorpusConfig, dict[str, str]], tmp_path: Path, limit: int
) -> None:
    """A limit on the size of files fails as a full disk does: at 4 KiB the text, at 16 a shard."""
    corpus, expected = finished
    before = f"import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
    code, told = finish(start(corpus, tmp_path / "out", before))
    assert code == 2
    assert f"error: {tmp_path / 'out.partial'}: no space left" in told
    assert told.count("error") == 1
    assert finish(start(corpus, tmp_path / "out"))[0] == 0
    assert contents(tmp_path / "out") == expected


def kill_midway(corpus: CorpusConfig, output: Path) -> None:
    process = start(corpus, output)
    wait_for((output.parent / f"{output.name}.partial/group-00000.json").exists, process)
    process.kill()
    finish(process)


def assert_starts_over(corpus: CorpusConfig, output: Path, why: str) -> None:
    code, told = finish(start(corpus, output))
    assert code == 0, told
    assert why in told
    fresh = output.parent / "fresh"
    assert finish(start(corpus, fresh))[0] == 0
    assert contents(output) == contents(fresh)


def test_a_changed_source_starts_over(tmp_path: Path) -> None:
    corpus = write_lines(tmp_path / "corpus.txt", make_documents(400))
    kill_midway(corpus, tmp_path / "out")
    write_lines(tmp_path / "corpus.txt", make_documents(400)[:-5] + make_documents(9, seed=1))
    assert_starts_over(corpus, tmp_path / "out", "the source or its vocabulary has changed")


def test_other_settings_start_over(tmp_path: Path) -> None:
    corpus = write_lines(tmp_path / "corpus.txt", make_documents(400))
    kill_midway(corpus, tmp_path / "out")
    corpus.heldout_fraction = 0.3
    assert_starts_over(corpus, tmp_path / "out", "made with other settings")
