"""Hostile files by the thousand: seeded damage to whole ones, read in a process that is bounded.

A case is a function of a test file, `case(draw, folder) -> bool`: it writes a damaged file into
`folder`, reads it, checks what came out, and says whether it was read (True) or refused by a
`UserError` (False). `fuzz` runs a case over many seeds in one child process whose memory is
limited and which an input that hangs ends; so a native crash fails the test and not the suite.
"""

import faulthandler
import json
import os
import random
import re
import resource
import runpy
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bert_jax.errors import UserError

INPUTS = [300, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.exhaustive])]
INPUT_SECONDS = 30.0  # of one input, on a busy machine; a common one takes a millisecond
MEMORY = 1 << 30  # bytes of address space that all inputs together may add

HOSTILE_TEXT = (
    *("", " ", "\0", "\0 [MASK]", "\ufeff", "\r", "\r\n", "\n\n", "\t", "\x85", "\u2028", "\u200b"),
    *("[MASK]", "[CLS][SEP][PAD]", "[UNK]", "<s>", "\u2581[MASK]", "##", "\u202e", "\u0301" * 50),
    *(
        "\U0010ffff",
        "\ufffd",
        "\ud83d",
        "\udcff",
        "\u1100\u1161\u11a8",
        "\ufdfa",
        "\u0130",
        "\u4e2d",
    ),
    *("../../etc/passwd", "/dev/zero", "%s%n", "{0}", "a" * 300, "<script>", "-", "0", "\u06f1"),
)
HOSTILE_JSON: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 5, 10**9, 2**31, 2**32, 2**63, -(2**63), 10**20, 10**400),
    *(0.5, -0.0, 1e308, 1e-320, float("nan"), float("inf"), [], {}, [[]], {"": {}}, [None] * 50),
)
_HOSTILE_BYTES = (
    *(b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xff\xfe", b"\x80" * 9),
    *(b"9" * 25, b"9" * 5000, b"-", b"1e999", b"NaN", b"Infinity", b"null", b"{", b"}", b'"', b","),
    *(
        b"[" * 3000,
        b'{"a":' * 3000,
        b"\\ud800",
        b"\\u0000",
        b"\0" * 8,
        b"\x1f\x8b",
        b"\n",
        b"\xff" * 8,
    ),
)


def fuzz(case: Callable[[random.Random, Path], bool], inputs: int) -> None:
    """Run `case` with the seeds 0 to `inputs` - 1; some must be read, and some refused."""
    arguments = [case.__code__.co_filename, case.__name__, str(inputs)]
    environment = os.environ | {
        "TOKENIZERS_PARALLELISM": "false",
        "RUST_BACKTRACE": "0",
        "PYTHONPATH": str(Path(__file__).parent),
    }
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # each input syncs files to disk
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        done = subprocess.run(
            [sys.executable, __file__, *arguments, folder],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60 + inputs * 0.03,
        )
    assert done.returncode == 0, f"{case.__name__}, exit {done.returncode}:\n{done.stderr[-5000:]}"
    found = json.loads(done.stdout.splitlines()[-1])
    print(f"{case.__name__}: {found}")
    assert found["read"] > 0
    assert found["refused"] > 0


def damaged(data: bytes, draw: random.Random) -> bytes:
    """`data` after one to three damages: bits, bytes, numbers, lengths, parts moved or lost."""
    for _ in range(draw.choice((1, 1, 2, 3))):
        start, end = sorted(draw.randrange(len(data) + 1) for _ in range(2))
        near = min(end, start + draw.randrange(1, 20))
        match draw.randrange(9):
            case 0 if data:
                bit = draw.randrange(8 * len(data))
                flipped = bytearray(data)
                flipped[bit // 8] ^= 1 << bit % 8
                data = bytes(flipped)
            case 1:
                data = data[:start]
            case 2:
                data = data[:start] + data[near:]
            case 3:
                data = data[:end] + data[start:near] + data[end:]
            case 4:
                data = data[:start] + data[start:end] * 2 + data[end:]
            case 5:
                data = data[:start] + draw.choice(_HOSTILE_BYTES) + data[near:]
            case 6:
                text = draw.choice(HOSTILE_TEXT).encode(errors="surrogatepass")
                data = data[:start] + text + data[start:]
            case 7:
                numbers = list(re.finditer(rb"-?\d+(\.\d+)?", data[:20_000]))
                if numbers:
                    number = draw.choice(numbers)
                    value = json.dumps(draw.choice(HOSTILE_JSON)).encode()
                    data = data[: number.start()] + value + data[number.end() :]
            case _:
                length = draw.choice((0, 1, 255, 2**16, 2**31, 2**32 - 1)).to_bytes(4, "little")
                data = data[:start] + length + data[start + 4 :]
    return data


def altered(value: Any, draw: random.Random) -> Any:
    """A JSON value with one thing in it replaced, renamed, doubled or left out."""
    if isinstance(value, dict) and value and draw.random() < 0.85:
        name = draw.choice(list(value))
        match draw.randrange(8):
            case 0:
                return {key: item for key, item in value.items() if key != name}
            case 1:
                return value | {draw.choice(HOSTILE_TEXT): value[name]}
            case _:
                return value | {name: altered(value[name], draw)}
    if isinstance(value, list) and value and draw.random() < 0.85:
        at = draw.randrange(len(value))
        match draw.randrange(8):
            case 0:
                return value[:at] + value[at + 1 :]
            case 1:
                return value[:at] + value[at:] + value[at : at + 1]
            case _:
                return [*value[:at], altered(value[at], draw), *value[at + 1 :]]
    return draw.choice(HOSTILE_JSON if draw.random() < 0.6 else HOSTILE_TEXT)


def damaged_json(document: Any, draw: random.Random) -> bytes:
    """A JSON document with damage to what it says, to its bytes, or to both."""
    kind = draw.randrange(5)
    for _ in range(draw.choice((1, 1, 2)) if kind else 0):
        document = altered(document, draw)
    data = json.dumps(document, ensure_ascii=draw.random() < 0.5).encode(errors="surrogatepass")
    return damaged(data, draw) if kind < 2 else data


def hostile_text(draw: random.Random) -> str:
    """A line of words, hostile characters and names of special pieces."""
    words = (
        *HOSTILE_TEXT,
        "the",
        "quick",
        "Tokenizer",
        "1915",
        "\uc548\ub155",
        chr(draw.randrange(0x110000)),
    )
    return draw.choice(("", " ")).join(draw.choice(words) for _ in range(draw.randrange(1, 12)))


def _run(file: str, name: str, inputs: int, folder: Path) -> dict[str, Any]:
    case = runpy.run_path(file)[name]
    case(random.Random(0), folder)  # what it imports and makes once is not the inputs' doing
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    read, slowest = 0, 0.0
    for seed in range(inputs):
        faulthandler.dump_traceback_later(INPUT_SECONDS, exit=True)
        start = time.perf_counter()
        try:
            read += case(random.Random(seed), folder)
        except BaseException:
            print(f"seed {seed}:\n{traceback.format_exc()}", file=sys.stderr)
            sys.exit(1)
        slowest = max(slowest, time.perf_counter() - start)
    faulthandler.cancel_dump_traceback_later()
    return {"read": read, "refused": inputs - read, "slowest": round(slowest, 3)}


def refused(error: UserError) -> bool:
    """False, for a case to return: the message must be one that a person can be shown."""
    assert str(error).strip()
    str(error).encode("utf-8", errors="backslashreplace")
    return False


if __name__ == "__main__":
    print(json.dumps(_run(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))))
