"""A "train" record is the same, to the bit, wherever the run was stopped since the last one."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.training.clock import Clock
from bert_jax.training.steps import Outcome
from bert_jax.training.window import Stretch, Window

STRETCH = Stretch(phase=1, end=100, flops=1e9)
STEPS = 12
NOISE = ("steps_per_second", "tokens_per_second", "mfu", "input_wait")


def positions_of(step: int) -> int:
    """Of a step's batch: not all are of one shape."""
    return 256 * (1 + step % 3)


def add_step(window: Window, step: int, skipped: bool) -> None:
    """A step with metrics of float32 scalars, as on a device."""
    loss, accuracy, norm = np.random.default_rng(step).uniform(0.1, 300, 3).astype(np.float32)
    nsp = np.float32(0 if skipped else loss / 3)
    weight = jnp.float32(0 if skipped else 7)
    metrics = {
        "mlm_loss": (jnp.float32(0 if skipped else loss), weight),
        "mlm_accuracy": (jnp.float32(0 if skipped else accuracy), weight),
        "nsp_loss": (nsp, weight / 2),
    }
    outcome = Outcome(jnp.float32(np.nan) if skipped else loss, norm, jnp.bool_(skipped))
    window.add(step, positions_of(step), metrics, outcome)


def stopped_at(stops: set[int], skipped: set[int]) -> tuple[dict, Window]:
    window = Window(Clock(), {})
    for step in range(1, STEPS + 1):
        add_step(window, step, step in skipped)
        if step in stops:
            window.settle()
            text = json.dumps(window.state())
            assert len(text) < 1024
            window = Window(Clock(), json.loads(text))
    window.settle()
    record = window.record(STEPS, STRETCH)
    return {name: value for name, value in record.items() if name not in NOISE}, window


def test_to_look_at_what_is_so_far_changes_no_record():
    skipped, window = {2, 3}, Window(Clock(), {})
    for step in range(1, STEPS + 1):
        add_step(window, step, step in skipped)
        seen = window.so_far(step, STRETCH)
        assert seen["skipped"] == len(skipped & set(range(step + 1)))
    record = window.record(STEPS, STRETCH)
    undisturbed, _ = stopped_at(set(), skipped)
    for name, value in undisturbed.items():
        assert seen[name] == record[name] == value


@pytest.mark.parametrize("stop", range(1, STEPS))
def test_a_record_over_a_stop_is_bit_equal(stop):
    skipped = {5, 6}
    record, window = stopped_at({stop}, skipped)
    assert record == stopped_at(set(), skipped)[0]
    assert (record["skipped"], window.skipped, window.in_row) == (2, 2, 0)


def test_means_leave_skipped_steps_out():
    record, _ = stopped_at(set(), {2, 3})
    losses = [np.random.default_rng(s).uniform(0.1, 300, 3)[0] for s in range(1, STEPS + 1)]
    kept = np.delete(losses, [1, 2])
    means = kept.sum() / (7 * len(kept)), kept.sum() / 3 / (3.5 * len(kept))
    assert (record["mlm_loss"], record["nsp_loss"]) == pytest.approx(means)
    assert record["loss"] == pytest.approx(sum(means)), "what is trained: the sum of both"
    assert (record["kind"], record["step"], record["phase"]) == ("train", STEPS, 1)
    assert stopped_at(set(), set(range(1, STEPS + 1)))[0]["loss"] is None


def test_skips_in_a_row_are_counted_over_a_stop():
    assert stopped_at({10}, {9, 10, 11, 12})[1].in_row == 4


def test_a_step_is_seen_when_two_more_are_begun():
    window = Window(Clock(), {})
    for step, seen in ((1, []), (2, []), (3, [1]), (4, [2])):
        add_step(window, step, skipped=True)
        assert [record["step"] for record in window.new_skips()] == seen


def test_a_new_run_has_skipped_and_evaluated_nothing():
    window = Window(Clock(), {})
    assert (window.skipped, window.in_row, window.evaluated, window.best) == (0, 0, 0, None)
    add_step(window, 1, skipped=True)
    window.settle()
    assert (window.skipped, window.in_row) == (1, 1)


def test_the_best_evaluation_is_known_after_a_stop():
    window = Window(Clock(), {})
    window.evaluated, window.best = 40, (30, 0.5)
    resumed = Window(Clock(), json.loads(json.dumps(window.state())))
    assert (resumed.evaluated, resumed.best) == (40, (30, 0.5))


def test_speeds_are_those_of_the_time_and_the_steps_of_the_session(monkeypatch):
    """So many seconds that those of the test itself are nothing among them."""
    monkeypatch.setattr("bert_jax.training.window.peak_flops", lambda _: 1e9)
    clock = Clock()
    with clock("log"):
        resumed = Window(clock, {"steps": 2, "skips": 1})
        for step in range(3, 9):
            add_step(resumed, step, skipped=step == 5)
        resumed.settle()
        before = dict(clock.seconds)
        clock.seconds["train"] += 2000.0
        clock.seconds["input"] += 500.0
        record = resumed.record(8, STRETCH)
    seconds = pytest.approx(2500, rel=0.05)
    assert 6 / record["steps_per_second"] == seconds
    positions = sum(map(positions_of, range(3, 9)))
    assert positions / record["tokens_per_second"] == seconds
    assert record["input_wait"] == pytest.approx(0.2, rel=0.05)
    peak = 1e9 * jax.device_count()
    assert positions * STRETCH.flops / record["mfu"] / peak == seconds
    moved = clock.seconds["skipped steps"]
    assert moved == pytest.approx((before["train"] + 2000.0) * 2 / 8)
    assert clock.seconds["train"] == pytest.approx(before["train"] + 2000.0 - moved)


def test_a_window_begins_where_the_last_ended():
    clock = Clock()
    window = Window(clock, {})
    for step, seconds in ((2, 8000.0), (4, 2000.0)):
        add_step(window, step - 1, skipped=True)
        add_step(window, step, skipped=False)
        window.settle()
        clock.seconds["train"] += seconds
        skipped = clock.seconds["skipped steps"]
        record = window.record(step, STRETCH)
        assert 2 / record["steps_per_second"] == pytest.approx(seconds, rel=0.05)
        assert clock.seconds["skipped steps"] - skipped == pytest.approx(seconds / 2, rel=0.05)
