"""metrics.jsonl keeps one history, whatever a run dies of; TensorBoard shows the same."""

import importlib
import json
import math
import os
import platform
import struct
import subprocess
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.errors import UserError
from bert_jax.training.metrics import (
    METRICS_FILE,
    MetricsWriter,
    _git_state,
    read_metrics,
    truncate_after,
    write_environment,
)
from bert_jax.training.run_files import write_json


def train(step: int, **values) -> dict:
    return {"kind": "train", "step": step, "phase": 0, "time": 1.5} | values


def test_records_come_back_as_written(tmp_path):
    records = [
        {"kind": "baseline", "time": 1.0, "mlm_accuracy": 0.06},
        train(10, loss=5.25, mfu=None),
        {"kind": "time", "time": 2.0, "step": 10, "session": 1.0, "seconds": {"train": 1.25}},
    ]
    with MetricsWriter(tmp_path / "run", 0) as writer:
        for number, record in enumerate(records, 1):
            writer.write(record)
            assert read_metrics(tmp_path / "run") == records[:number], "on disk when it returns"


def test_lines_are_on_the_disk_with_a_time_record(tmp_path, monkeypatch):
    """A bucket that is mounted gets what is appended at an fsync."""
    durable = []
    with MetricsWriter(tmp_path, 0) as writer:
        monkeypatch.setattr(os, "fsync", lambda descriptor: durable.append(os.fstat(descriptor)))
        writer.write(train(10, loss=5.25))
        assert not durable
        writer.write({"kind": "time", "step": 10, "session": 1.0, "seconds": {}})
        (events,) = (tmp_path / "tensorboard").iterdir()
        for path, found in zip((tmp_path / METRICS_FILE, events), durable, strict=True):
            assert (found.st_ino, found.st_size) == (path.stat().st_ino, path.stat().st_size)


def test_time_is_added(tmp_path):
    with MetricsWriter(tmp_path, 0) as writer:
        writer.write({"kind": "baseline"})
    assert read_metrics(tmp_path)[0]["time"] > 1.7e9


def test_scalars_of_jax_and_numpy_and_what_json_has_not(tmp_path):
    with MetricsWriter(tmp_path, 0) as writer:
        writer.write(
            train(1, a=np.float32(0.5), b=jnp.asarray(2), c=float("nan"), d=np.float64("inf"))
        )
        writer.write(
            {"kind": "time", "step": 1, "session": 1.0, "seconds": {"train": float("-inf")}}
        )
    first, second = read_metrics(tmp_path)
    assert (first["a"], first["b"], first["c"], first["d"]) == (0.5, 2, None, None)
    assert second["seconds"] == {"train": None}
    assert "NaN" not in (tmp_path / METRICS_FILE).read_text()


def test_a_resumed_run_has_one_history(tmp_path):
    with MetricsWriter(tmp_path, 0) as writer:
        writer.write({"kind": "baseline", "mlm_accuracy": 0.06})
        for step in (10, 20, 30):
            writer.write(train(step, loss=1.0))
            writer.write({"kind": "eval", "step": step, "mlm_loss": 1.0})
        writer.write({"kind": "time", "step": 30, "session": 1.0, "seconds": {"train": 3.0}})
    with MetricsWriter(tmp_path, 20) as writer:
        writer.write(train(30, loss=2.0))
    kept = [(record["kind"], record.get("step")) for record in read_metrics(tmp_path)]
    assert kept == [
        ("baseline", None),
        ("train", 10),
        ("eval", 10),
        ("train", 20),
        ("eval", 20),
        ("time", 30),
        ("train", 30),
    ]
    assert read_metrics(tmp_path)[-1]["loss"] == 2.0


def test_what_a_resumed_run_writes_anew_is_dropped(tmp_path):
    """It goes on from step 20, whose evaluation was broken off, and where a phase begins."""
    kinds = [("baseline", 0), ("skip", 3), ("eval", 10), ("train", 20), ("skip", 20)]
    later = [("baseline", 20), ("eval", 20), ("skip", 21), ("train", 30)]
    with MetricsWriter(tmp_path, 0) as writer:
        for kind, step in kinds + later:
            writer.write({"kind": kind, "step": step})
    MetricsWriter(tmp_path, 20, evaluated=10).close()
    assert [(record["kind"], record["step"]) for record in read_metrics(tmp_path)] == kinds


@given(cut=st.integers(0, 400), step=st.integers(0, 50))
def test_a_file_cut_anywhere_reads_and_resumes(tmp_path_factory, cut, step):
    run = tmp_path_factory.mktemp("run")
    lines = "".join(json.dumps(train(s, loss=1 / s)) + "\n" for s in (10, 20, 30, 40))
    (run / METRICS_FILE).write_text(lines[:cut])
    whole = [json.loads(line) for line in lines[:cut].split("\n")[:-1]]
    assert read_metrics(run) == whole
    truncate_after(run, step)
    assert read_metrics(run) == [record for record in whole if record["step"] <= step]
    assert not list(run.glob("*.tmp"))


def test_an_evaluation_before_the_first_step_is_written_anew(tmp_path):
    first = {"kind": "eval", "step": 0, "phase": 0, "time": 1.0}
    with MetricsWriter(tmp_path, 0) as writer:
        writer.write(first)
    truncate_after(tmp_path, 0, evaluated=0)
    assert read_metrics(tmp_path) == [first]
    truncate_after(tmp_path, 0, evaluated=-1)
    assert read_metrics(tmp_path) == []


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"\xff\xfe",
        b"[1]",
        b'{"step": 1}',
        b'{"kind": "train"}',
        b'{"kind": "train", "step": "1"}',
        b'{"kind": "eval", "step": true}',
        b'{"kind": "time", "step": 1, "session": 1.0, "seconds": 3}',
        b'{"kind": "time", "step": 1, "seconds": {}}',
        b'{"kind": "time", "session": 1.0, "seconds": {}}',
        b'{"kind": "time", "step": 1, "session": 1.0, "seconds": {"train": "1"}}',
        b'{"kind": "skip"}',
        b'{"kind": "baseline", "step": "1"}',
        b"[" * 100_000,
    ],
)
def test_a_line_that_is_no_record_is_named(tmp_path, line):
    (tmp_path / METRICS_FILE).write_bytes(b'{"kind": "baseline"}\n' + line + b"\n")
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 2: .*remove the line"):
        read_metrics(tmp_path)


def test_numbers_that_json_has_not_are_read_as_none(tmp_path):
    (tmp_path / METRICS_FILE).write_text('{"kind": "baseline", "a": NaN, "b": 1e999}\n')
    assert read_metrics(tmp_path) == [{"kind": "baseline", "a": None, "b": None}]


def scalars(run: Path) -> dict[str, list[tuple[int, float]]]:
    """The points TensorBoard shows: records of length, checksum, data, checksum, in the order of
    the files' names; a session that starts at a step hides earlier points from that step on."""
    proto = importlib.import_module("tensorboardX.proto.event_pb2")
    points: dict[str, list[tuple[int, float]]] = {}
    for path in sorted((run / "tensorboard").iterdir()):
        content = path.read_bytes()
        while content:
            (size,) = struct.unpack_from("<Q", content)
            event = proto.Event.FromString(content[12 : 12 + size])
            content = content[16 + size :]
            if event.HasField("session_log"):
                points = {tag: [p for p in old if p[0] < event.step] for tag, old in points.items()}
            for value in event.summary.value:
                points.setdefault(value.tag, []).append((event.step, value.simple_value))
    return points


def test_tensorboard_shows_one_history_too(tmp_path):
    with MetricsWriter(tmp_path, 0) as writer:
        for step in (10, 20, 30):
            writer.write(train(step, loss=1.0, mfu=None, tail=math.nan))
    # In the same second: the second file must not replace the first.
    with MetricsWriter(tmp_path, 20) as writer:
        writer.write(train(30, loss=2.0))
        writer.write({"kind": "eval", "step": 30, "mlm_loss": 3.0})
        assert ("eval/mlm_loss", [(30, 3.0)]) in scalars(tmp_path).items(), "before it is closed"
    assert len(list((tmp_path / "tensorboard").iterdir())) == 2
    assert scalars(tmp_path) == {
        "train/loss": [(10, 1.0), (20, 1.0), (30, 2.0)],
        "eval/mlm_loss": [(30, 3.0)],
    }


@pytest.mark.parametrize("behind", [0, 3600])
def test_tensorboard_reads_sessions_in_their_order_whatever_the_clock(
    tmp_path, monkeypatch, behind
):
    """The last one may run on another host, whose clock is behind and whose name is before."""
    with MetricsWriter(tmp_path, 0) as writer:
        writer.write(train(10, loss=1.0))
    now = time.time() - behind
    monkeypatch.setattr(time, "time", lambda: now)
    monkeypatch.setattr(platform, "node", lambda: "-")
    with MetricsWriter(tmp_path, 10) as writer:
        writer.write(train(20, loss=2.0))
    assert scalars(tmp_path)["train/loss"] == [(10, 1.0), (20, 2.0)]


def test_a_full_disk_is_told_where_tensorboard_meets_it_first(tmp_path, small_disk):
    """And not waited for: each record is of less than 100 bytes there, and the disk of 16 KiB."""
    (tmp_path / "tensorboard").symlink_to(small_disk("16k"))

    def write_all() -> None:
        with MetricsWriter(tmp_path, 0) as writer:
            for step in range(1000):
                writer.write(train(step, loss=1.0))

    with pytest.raises(OSError, match="No space left"):
        write_all()
    assert len(read_metrics(tmp_path)) < 1000


def test_environment_names_versions_devices_and_the_command(tmp_path):
    write_environment(tmp_path)
    environment = json.loads((tmp_path / "environment.json").read_text())
    assert environment["versions"]["numpy"] == np.__version__
    assert environment["devices"] == {"cpu": jax.device_count()}
    assert environment["processes"] == 1
    assert environment["command"]


def test_environment_keeps_what_a_run_was_begun_in(tmp_path):
    def read() -> dict[str, Any]:
        return json.loads((tmp_path / "environment.json").read_text())

    write_environment(tmp_path)
    now = read()
    write_json(tmp_path / "environment.json", {**now, "command": ["train"], "host": "elsewhere"})
    write_environment(tmp_path)
    assert read() == now, "what no bit hangs on is replaced"
    older = {**now, "versions": {**now["versions"], "jax": "0.10.0"}}
    oldest = {**older, "devices": {"TPU v5 lite": 8}}
    write_json(tmp_path / "environment.json", {**older, "earlier": [oldest]})
    for _ in range(2):
        write_environment(tmp_path)
        assert read() == {**now, "earlier": [oldest, older]}
    write_json(tmp_path / "environment.json", {**older, "earlier": 3})
    write_environment(tmp_path)
    assert read() == {**now, "earlier": [older]}


def test_git_state_is_that_of_a_checkout_that_holds_the_package(tmp_path):
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    assert _git_state(tmp_path) is None, "no checkout"
    git("init")
    module = tmp_path / "metrics.py"
    module.write_text("a = 1\n")
    assert _git_state(tmp_path) is None, "installed below somebody else's checkout"
    git("add", "metrics.py")
    git("commit", "-m", "one")
    assert _git_state(tmp_path) == {"commit": git("rev-parse", "HEAD"), "dirty": False}
    module.write_text("a = 2\n")
    assert _git_state(tmp_path) == {"commit": git("rev-parse", "HEAD"), "dirty": True}
