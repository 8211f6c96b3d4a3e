"""What the system says no to ends in a line that says where, and an exit code."""

import subprocess
import sys
from pathlib import Path

import pytest
from small_run import ROOT

from bert_jax.errors import run_main

PRINTS = (
    "import sys; from bert_jax.errors import run_main; run_main(lambda: print('a' * 100_000)); "
    "print('goes on', file=sys.stderr)"
)


def run(*command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """A command that finds our package, and of the environment has these variables alone."""
    return subprocess.run(
        command,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_name_that_no_system_takes_is_one_line(capsys):
    def main() -> None:
        Path("a" * 300).exists()

    with pytest.raises(SystemExit) as end:
        run_main(main)
    assert end.value.code == 2
    assert capsys.readouterr().err == f"error: {'a' * 300}: File name too long\n"


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    ("to", "code", "told"),
    [
        ("> /dev/full", 2, "error: the system: No space left on device\n"),
        ("| true", 2, "error: the system: Broken pipe\n"),
        (">&-", 0, "goes on\n"),
    ],
)
def test_output_that_takes_no_more_is_one_line(unbuffered, to, code, told):
    """Python itself would end with code 120 and a traceback where its own last flush fails."""
    shell = "bash", "-c", f'set -o pipefail; "$0" -c "$1" {to}'
    result = run(*shell, sys.executable, PRINTS, PYTHONUNBUFFERED=unbuffered)
    assert result.returncode == code
    assert result.stderr == told


def test_a_name_in_another_encoding_is_printed():
    program = "from bert_jax.errors import run_main; run_main(lambda: print('책', '\\udcc7'))"
    result = run(sys.executable, "-c", program, PYTHONIOENCODING="ascii:strict")
    assert (result.stdout, result.stderr) == ("\\ucc45 \\udcc7\n", "")


def test_a_command_without_standard_streams_finds_them_empty():
    program = (
        "import sys; from bert_jax.errors import run_main; run_main(lambda: print("
        "[sys.stdin.read(), sys.stdin.isatty(), sys.stdout.isatty()], file=sys.stderr))"
    )
    result = run("bash", "-c", '"$0" -c "$1" >&- <&-', sys.executable, program)
    assert result.stderr == "['', False, False]\n"


@pytest.mark.parametrize("closed", ["2>&-", "2>&- <&-"])
def test_without_standard_error_no_file_takes_its_place(closed, tmp_path):
    program = (
        "import sys; from bert_jax.errors import run_main; run_main(lambda: print("
        "open(sys.argv[1], 'w').fileno() > 2, sys.stderr.isatty(), sys.stderr.write('a')))"
    )
    shell = "bash", "-c", f'"$0" -c "$1" "$2" {closed}'
    result = run(*shell, sys.executable, program, tmp_path / "file")
    assert (result.returncode, result.stdout) == (0, "True False 1\n")


def test_a_home_that_the_shell_leaves_is_put_in(monkeypatch, capsys):
    given = [
        "--output=~/a b",
        "--config.data.dir=~/a=~/b",
        "~/text",
        "--context=~ 3",
        "a=~/b",
        "--",
    ]
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setattr(sys, "argv", ["~/program", *given])
    run_main(lambda: print(*sys.argv, sep="\n"))
    put_in = ["--output=/home/me/a b", "--config.data.dir=/home/me/a=~/b"]
    assert capsys.readouterr().out.splitlines() == ["~/program", *put_in, *given[2:]]


def test_without_asserts_nothing_begins():
    program = "from bert_jax.errors import run_main; run_main(lambda: print('begun'))"
    result = run(sys.executable, "-O", "-c", program)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("error: Flax needs its asserts: run without python -O")


def test_an_interrupt_that_a_callback_drops_comes_again():
    """Ctrl-C during a garbage collection is raised in what JAX is called back by after it."""
    program = """
import gc, signal, time
from bert_jax.errors import run_main

def call_back(phase, facts):
    if phase == "stop":
        gc.callbacks.clear()
        signal.raise_signal(signal.SIGINT)

def main():
    gc.callbacks.append(call_back)
    gc.collect()
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        print("stopped")

signal.signal(signal.SIGINT, signal.default_int_handler)
run_main(main)
"""
    result = run(sys.executable, "-c", program)
    assert (result.returncode, result.stdout, result.stderr) == (0, "stopped\n", "")
