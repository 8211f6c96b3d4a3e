"""What a signal does while a program starts, while it runs, within a block, and at the end."""

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from bert_jax.errors import INTERRUPTED_EXIT_CODE, in_command
from bert_jax.training.stopping import RESUME_EXIT_CODE, SIGNALS, STOPPED, StopRequest

IN_COMMAND = "from bert_jax import errors; errors.in_command.set(True)"
NUMBERS = pytest.mark.parametrize("number", SIGNALS)


def run(code: str) -> subprocess.CompletedProcess[str]:
    code = f"import signal\nfrom bert_jax.training import stopping\n{code}\nprint('whole')"
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@NUMBERS
def test_a_program_that_starts_ends_at_once_and_says_how_to_go_on(number):
    done = run(f"stopping.exit_at_signals(); signal.raise_signal({number:d})")
    assert (done.returncode, done.stdout, done.stderr) == (75, "", f"\n{STOPPED}\n")


@NUMBERS
def test_a_program_that_ends_is_not_disturbed(number):
    done = run(f"stopping.ignore_signals(); signal.raise_signal({number:d})")
    assert (done.returncode, done.stdout, done.stderr) == (0, "whole\n", "")


@NUMBERS
@pytest.mark.parametrize(
    ("before", "code", "told"),
    [
        ("stopping.interrupt_at_signals()", INTERRUPTED_EXIT_CODE, "stopped"),
        ("stopping.StopRequest()", RESUME_EXIT_CODE, STOPPED),
    ],
)
def test_a_block_ends_the_process_though_python_is_not_asked(number, before, code, told):
    done = run(
        f"""
import hashlib, os, threading
{IN_COMMAND}
{before}
with stopping.ending_at_signals():
    threading.Timer(0.2, os.kill, (os.getpid(), {number:d})).start()
    # Minutes in which no handler runs.
    hashlib.pbkdf2_hmac("sha256", b"", b"", 1 << 30)
"""
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, "", f"\n{told}\n")


@pytest.mark.parametrize(
    ("before", "code", "printed"), [(IN_COMMAND, RESUME_EXIT_CODE, ""), ("", 0, "whole\n")]
)
def test_only_a_command_is_ended_by_what_it_does(before, code, printed):
    """Not a notebook, say, that holds more than the run."""
    done = run(
        f"""
from bert_jax.config import LimitsConfig
from bert_jax.training.cluster import Cluster
{before}
stop = stopping.StopRequest()
with Cluster(LimitsConfig(), stop, 0, 1).ending_alone():
    signal.raise_signal(signal.SIGINT)
assert stop.pending
"""
    )
    assert (done.returncode, done.stdout) == (code, printed), done.stderr


def test_other_signals_do_not_end_it_and_later_ones_are_told():
    done = run(
        f"""
{IN_COMMAND}
stop = stopping.StopRequest()
signal.signal(signal.SIGUSR1, lambda number, frame: print("other", flush=True))
with stopping.ending_at_signals():
    signal.raise_signal(signal.SIGUSR1)
assert not stop.pending
signal.raise_signal(signal.SIGTERM)
assert stop.pending
assert signal.set_wakeup_fd(-1) == -1
"""
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "other\nwhole\n", "")


@NUMBERS
def test_a_signal_is_told_and_ends_nothing(number):
    stop = StopRequest()
    assert not stop.pending
    for _ in range(2):
        signal.raise_signal(number)
        assert stop.pending


@NUMBERS
def test_a_block_is_broken_off_once(number):
    """A second signal must not break off what is done because of the first."""
    stop = StopRequest()
    reached = []
    with stop.interrupting():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        signal.raise_signal(number)
        reached.append("the end of the block")
    signal.raise_signal(number)
    assert reached
    with pytest.raises(KeyboardInterrupt), stop.interrupting():
        pytest.fail("the signal had come before")


@NUMBERS
@pytest.mark.parametrize("times", [1, 3])
def test_a_callback_cannot_drop_what_breaks_a_block_off(number, times):
    """JAX calls back after garbage collections, and what is raised there goes no further."""
    done = run(
        f"""
import gc, time
dropped = []
def call_back(phase, facts):
    if phase == "stop" and len(dropped) < {times}:
        dropped.append(phase)
        signal.raise_signal({number:d} if len(dropped) == 1 else signal.SIGINT)
stop = stopping.StopRequest()
try:
    with stop.interrupting():
        gc.callbacks.append(call_back)
        for _ in range({times}):
            gc.collect()
        time.sleep(60)
except KeyboardInterrupt:
    print("broken off", len(dropped))
"""
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"broken off {times}\nwhole\n"


@NUMBERS
def test_after_a_block_nothing_is_broken_off(number):
    stop = StopRequest()
    with stop.interrupting():
        pass
    signal.raise_signal(number)
    assert stop.pending


def test_in_a_thread_of_a_caller_signals_are_left_to_it():
    before = [signal.getsignal(number) for number in SIGNALS]
    with ThreadPoolExecutor() as thread, thread.submit(StopRequest).result() as stop:
        assert [signal.getsignal(number) for number in SIGNALS] == before
        stop.ask()
        assert stop.pending
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_what_is_asked_without_a_signal_breaks_a_block_off():
    with StopRequest() as stop, ThreadPoolExecutor() as thread:
        with pytest.raises(KeyboardInterrupt), stop.interrupting():
            thread.submit(stop.ask).result()
        assert stop.pending


@pytest.mark.parametrize("in_a_command", [True, False])
def test_who_calls_from_python_has_the_signals_back(in_a_command):
    """A command ends next, and must not be broken off as it does."""
    before = [signal.getsignal(number) for number in SIGNALS]
    outside = in_command.set(in_a_command)
    try:
        with StopRequest() as stop:
            signal.raise_signal(signal.SIGTERM)
            assert stop.pending
        after = [signal.getsignal(number) for number in SIGNALS]
    finally:
        in_command.reset(outside)
        for number, handler in zip(SIGNALS, before, strict=True):
            signal.signal(number, handler)
    assert (after == before) != in_a_command
