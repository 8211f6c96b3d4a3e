"""Files that are there whole or not at all, and locks."""

import errno
import fcntl
import os
import threading

import pytest

from bert_jax.config import CorpusConfig
from bert_jax.data.staging import stage
from bert_jax.files import lock, replace_file
from bert_jax.prepare import prepare
from bert_jax.training.run_directory import locked


def test_a_file_that_cannot_be_written_whole_stays_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "facts.json"
    replace_file(path, b"old")

    def fsync(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="No space"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"


def test_one_at_a_time_holds_a_lock(tmp_path):
    taken = threading.Event()

    def wait_for_it() -> None:
        with open(tmp_path / "lock", "a") as second:
            lock(second, wait=True)
            taken.set()

    waiting = threading.Thread(target=wait_for_it)
    with open(tmp_path / "lock", "a") as first, open(tmp_path / "lock", "a") as second:
        lock(first)
        with pytest.raises(BlockingIOError):
            lock(second)
        waiting.start()
        assert not taken.wait(0.1)
    waiting.join(10)
    assert taken.is_set()


@pytest.mark.parametrize("reason", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_without_locks_goes_without(tmp_path, monkeypatch, reason):
    def flock(*_: int) -> None:
        raise OSError(reason, os.strerror(reason))

    monkeypatch.setattr(fcntl, "flock", flock)
    text = tmp_path / "text.txt"
    text.write_text("".join(f"a river runs {n}\n\n" for n in range(100)))
    corpus = CorpusConfig(source=f"text:{text}", sentences="lines", heldout_fraction=0.2)
    prepare(corpus, 100, tmp_path / "shards", progress=False)
    assert stage(tmp_path / "shards", tmp_path / "staged").copied > 0
    with locked(tmp_path / "new" / "run"):
        assert (tmp_path / "new/run").is_dir()


def test_a_lock_that_fails_otherwise_is_no_lock(tmp_path, monkeypatch):
    def flock(*_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", flock)
    with open(tmp_path / "lock", "a") as file, pytest.raises(OSError, match="Input/output"):
        lock(file)
