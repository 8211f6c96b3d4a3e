"""What a person sees: the right numbers, and plain lines where there is no terminal."""

import dataclasses
import functools
import io
import re
from pathlib import Path

import pytest

from bert_jax.config import Config, DataConfig, Phase, model_size
from bert_jax.errors import in_command
from bert_jax.training import console
from bert_jax.training.console import (
    Progress,
    duration,
    evaluation_line,
    header,
    how_to_continue,
    pretraining_seconds_left,
    summary,
)
from bert_jax.training.flops import run_flops

CONFIG = Config(
    model=model_size("tiny"),
    phases=(
        Phase(steps=20, batch_size=64),
        Phase(seq_len=512, steps=10, batch_size=16, max_predictions=76),
    ),
)
TRAIN = {
    "phase": 0,
    "loss": 5.2344,
    "mlm_accuracy": 0.1415,
    "nsp_accuracy": 0.711,
    "steps_per_second": 5.5,
    "tokens_per_second": 45_123.4,
    "mfu": None,
    "input_wait": 0.0031,
}
EVAL = {
    "step": 20,
    "mlm_loss": 4.92,
    "mlm_perplexity": 137.0,
    "mlm_accuracy": 0.182,
    "nsp_loss": 0.44,
    "nsp_accuracy": 0.789,
}
BASELINE = {"mlm_accuracy": 0.059, "nsp_accuracy": 0.5}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_header_states_model_mesh_phases_and_work():
    mesh = {"data": 4, "fsdp": 2, "tensor": 1}
    text = header(CONFIG, 4_416_698, mesh, "cpu", flops_per_second=1e11)
    flops = run_flops(CONFIG.model, CONFIG.phases)
    assert "BERT tiny: 2 layers, 128 wide" in text
    assert "4,416,698 parameters" in text
    assert "data 4 x fsdp 2 x tensor 1, cpu" in text
    assert "20 steps of 64 x 128 tokens" in text
    assert "10 steps of 16 x 512 tokens" in text
    tokens = 20 * 64 * 128 + 10 * 16 * 512
    assert f"{tokens:,} tokens, {flops:.2g} FLOPs, about {duration(flops / 1e11)}" in text
    assert "resumes" not in text


def test_header_of_a_resumed_run_counts_what_is_left():
    text = header(CONFIG, 1, {"data": 1}, "cpu", start_step=25)
    assert "after step 25 of 30" in text
    assert f"{5 * 16 * 512:,} tokens" in text
    assert "about" not in text, "no rate is known, so no time is promised"


def test_evaluation_stands_beside_the_baseline():
    line = evaluation_line(EVAL, BASELINE)
    assert line.startswith("step 20, held-out MLM loss 4.920, perplexity 137.0, accuracy 18.2%")
    assert "(most frequent token: 5.9%)" in line
    assert "NSP loss 0.440, accuracy 78.9% (most frequent label: 50.0%)" in line
    assert "\n" not in line


def test_evaluation_without_next_sentence_or_finite_loss():
    line = evaluation_line(
        {"step": 1, "mlm_loss": None, "mlm_perplexity": float("nan"), "mlm_accuracy": 0.0}, {}
    )
    assert line == "step 1, held-out MLM loss n/a, perplexity nan, accuracy 0.0%"


def test_summary_names_the_split_of_time_and_commands_to_paste():
    seconds = {"corpus": 40.0, "train": 290.0, "compile": 8.2, "eval": 0.0}
    text = summary(Path("runs/my books"), EVAL, BASELINE, seconds)
    assert text.startswith("done\n")
    assert "5 min 38 s: train 4 min 50 s (86%), corpus 40 s (12%), compile 8.2 s (2%)" in text
    assert "python -m bert_jax.report 'runs/my books'" in text
    assert "continue" not in text
    stopped = summary(Path("r"), None, {}, {}, resume_command="python -m bert_jax.train --x")
    assert stopped.startswith("stopped\n")
    assert "continue  python -m bert_jax.train --x" in stopped
    assert "held-out" not in stopped


def test_what_goes_on_is_the_command_or_the_call(monkeypatch):
    monkeypatch.setattr("sys.argv", ["train.py", "--config=tiny", "--workdir=my run"])
    assert how_to_continue("bert_jax.train") == "the same call"
    outside = in_command.set(True)
    try:
        command = how_to_continue("bert_jax.train")
    finally:
        in_command.reset(outside)
    assert command == "python -m bert_jax.train --config=tiny '--workdir=my run'"


SECONDS_LEFT = functools.partial(pretraining_seconds_left, CONFIG)


def test_lines_without_a_terminal_hold_no_control_characters():
    stream = io.StringIO()
    with Progress(CONFIG.total_steps, SECONDS_LEFT, stream=stream) as progress:
        for step in range(1, 31):
            progress.update(step, TRAIN if step % 10 == 0 else None)
            if step == 20:
                progress.print("an evaluation")
    lines = stream.getvalue().splitlines()
    assert not re.search(r"[^\n -~]", stream.getvalue())
    assert lines[0].startswith("step 10/30 loss 5.234  mlm 14.1%  nsp 71.1%  45,123 tokens/s")
    assert "input wait 0.3%" in lines[0]
    assert "mfu" not in lines[0], "not known"
    assert lines[1] == "an evaluation"
    assert lines[2].startswith("step 30/30"), "the last line is not held back for good"
    assert len(lines) == 3, "step 20 came within ten seconds of step 10"


def test_lines_come_at_most_every_ten_seconds(monkeypatch):
    clock = iter(range(1000, 2000, 3))
    monkeypatch.setattr(console.time, "monotonic", lambda: float(next(clock)))
    stream = io.StringIO()
    progress = Progress(CONFIG.total_steps, SECONDS_LEFT, stream=stream)
    for step in range(1, 21):
        progress.update(step, TRAIN)
    assert 4 <= len(stream.getvalue().splitlines()) <= 7


@pytest.mark.parametrize(
    ("stream", "due"), [(io.StringIO(), [10, 70, 160]), (Terminal(), [2, 4, 6])]
)
def test_between_far_records_something_is_shown(monkeypatch, stream, due):
    """Soon after the start, then each minute without a line; a bar moves every other second."""
    monkeypatch.setattr(console.time, "monotonic", lambda: float(now))
    now, shown = 0, []
    progress = Progress(CONFIG.total_steps, SECONDS_LEFT, stream=stream)
    for now in range(1, 200):
        if now == 100:  # a record
            progress.update(2, TRAIN)
        elif progress.due():
            shown.append(now)
            progress.update(1, TRAIN)
    assert shown[:3] == due


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_what_takes_long_is_noted_and_a_bar_ends_with_the_last_step(monkeypatch, stream):
    monkeypatch.setattr(console.time, "monotonic", lambda: float(now))
    now, said = 0, "scoring: 32 of 4,961 sequences"
    with Progress(CONFIG.total_steps, SECONDS_LEFT, stream=stream) as progress:
        progress.update(30, TRAIN)
        now = 1
        progress.note(said)
        assert said not in stream.getvalue(), "so soon"
        now = 100
        progress.note(said)
        assert said in stream.getvalue()
    *_, last = re.split("[\r\n]+", stream.getvalue().strip())
    assert ("loss 5.234" in last) == stream.isatty()


def test_a_terminal_gets_a_bar_that_text_does_not_break():
    stream = Terminal()
    with Progress(CONFIG.total_steps, SECONDS_LEFT, start_step=5, stream=stream) as progress:
        progress.update(20, TRAIN | {"mfu": 0.413})
        progress.print("an evaluation")
        progress.update(30)
    screen = stream.getvalue()
    assert "\ran evaluation\n" in screen
    last = screen.rsplit("\r", 1)[-1]
    assert "100%" in last
    assert "30/30" in last
    assert "mfu 41.3%" in last


def test_header_of_a_packed_run_states_the_most_work():
    config = dataclasses.replace(CONFIG, data=DataConfig(packing=True))
    text = header(config, 4_416_698, {"data": 8}, "cpu", flops_per_second=1e11)
    assert "20 predictions a sequence, packed\n" in text
    assert f"at most {20 * 64 * 128 + 10 * 16 * 512:,} tokens" in text


def test_other_processes_print_nothing():
    for stream in (Terminal(), io.StringIO()):
        with Progress(CONFIG.total_steps, SECONDS_LEFT, enabled=False, stream=stream) as progress:
            progress.update(10, TRAIN)
            progress.print("text")
        assert stream.getvalue() == ""


def test_time_left_counts_the_longer_phase_as_longer():
    stream = io.StringIO()
    with Progress(CONFIG.total_steps, SECONDS_LEFT, stream=stream) as progress:
        progress.update(10, TRAIN | {"steps_per_second": 0.25})
    flops = run_flops(CONFIG.model, CONFIG.phases, 10)
    of_a_step = run_flops(CONFIG.model, CONFIG.phases[:1]) / 20
    assert stream.getvalue().strip().endswith(f"eta {duration(flops / of_a_step / 0.25)}")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (8.24, "8.2 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (372, "6 min 12 s"),
        (3 * 3600 + 4 * 60, "3 h 04 min"),
        (50 * 3600, "2 d 02 h"),
    ],
)
def test_durations(seconds, text):
    assert duration(seconds) == text
