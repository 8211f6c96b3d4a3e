"""Every second of a run has one cause, over all its sessions, also those that were killed."""

import subprocess
import sys
import time

import pytest

from bert_jax.training.clock import Clock, account, goodput


def record(session: float, step: int, **seconds: float) -> dict:
    return {"kind": "time", "session": session, "step": step, "seconds": seconds}


def test_causes_add_up_and_interrupt_one_another():
    began = time.perf_counter()
    clock = Clock(age=100.0)
    with clock("train"):
        time.sleep(0.02)
        with clock("eval"):
            time.sleep(0.03)
    with clock("eval"):
        time.sleep(0.01)
    time.sleep(0.02)
    seconds = clock.record(7)["seconds"]
    assert sum(seconds.values()) == pytest.approx(100 + time.perf_counter() - began, abs=0.01)
    assert seconds["start"] >= 100
    assert seconds["train"] >= 0.02
    assert seconds["eval"] >= 0.04
    assert clock.session == pytest.approx(time.time() - sum(seconds.values()), abs=0.1)


def test_one_session_is_what_it_says_last():
    records = [record(1000, 0, start=5), record(1000, 10, start=5, train=20)]
    assert account(records) == {"start": 5, "train": 20}
    assert goodput(account(records)) == 0.8
    assert account([]) == {}
    assert goodput({}) is None
    assert goodput({"start": 5.0}) == 0


def test_what_a_killed_session_did_after_its_checkpoint_was_for_nothing():
    records = [
        record(1000, 0, start=5),
        record(1000, 10, start=5, train=20),  # a checkpoint; killed some time later
        record(1100, 10, start=4),
        record(1100, 20, start=4, train=16),
    ]
    assert account(records) == {"start": 9, "train": 36, "restarts": 75}
    assert sum(account(records).values()) == 1120 - 1000


def test_a_session_whose_checkpoints_were_not_used_was_for_nothing():
    """The third goes on from step 10, of the first: the second's checkpoint was damaged."""
    records = [
        record(1000, 0, start=5),
        record(1000, 10, start=5, train=20),
        record(1100, 10, start=4),
        record(1100, 20, start=4, train=16),
        record(1200, 10, start=3, train=1),
    ]
    assert account(records) == {"start": 12, "train": 21, "restarts": 75 + 96}
    assert sum(account(records).values()) == 1204 - 1000


def test_two_sessions_may_be_for_nothing():
    """The third goes on from step 10, for the checkpoints of steps 20 and 30 were damaged."""
    records = [
        record(1000, 0, start=5),
        record(1000, 10, start=5, train=20),
        record(1000, 20, start=5, train=40),
        record(1100, 20, start=4),
        record(1100, 30, start=4, train=16),
        record(1200, 10, start=3, train=1),
    ]
    assert account(records) == {"start": 8, "train": 21, "restarts": 75 + 100}
    assert sum(account(records).values()) == 1204 - 1000


def test_times_that_are_not_known_or_overlap_count_nothing():
    """As where a number was not finite, and where the clock was set back between two sessions."""
    records = [record(1000, 10, start=5, train=20), record(1010, 10, start=4)]
    records[1]["seconds"]["train"] = None
    assert account(records) == {"start": 9, "train": 20, "restarts": 0}


def test_the_clock_of_a_process_starts_with_it():
    program = (
        "import time; time.sleep(0.3); from bert_jax.training.clock import process_age; "
        "print(process_age())"
    )
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert 0.3 <= float(done.stdout) <= time.monotonic() - began + 0.02
