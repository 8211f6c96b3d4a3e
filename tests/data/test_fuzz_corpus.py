"""Hostile text and JSON lines: refused, or clean sentences in bounded time and memory."""

import functools
import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from compressing import COMPRESS
from fuzzing import HOSTILE_JSON, INPUTS, damaged, fuzz, hostile_text, refused

from bert_jax.config import CorpusConfig
from bert_jax.data.corpus import open_source
from bert_jax.data.documents import MAX_SENTENCE
from bert_jax.data.tokenization import Tokenizer, train_tokenizer
from bert_jax.errors import UserError

UNCLEAN = re.compile("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\ufeff\ud800-\udfff\n\r]")


@functools.cache
def tokenizer() -> Tokenizer:
    return train_tokenizer("wordpiece", iter(["the quick brown fox 1915"] * 3), 64, lowercase=True)


def reads_well(settings: CorpusConfig) -> bool:
    """Whether a corpus is read; its sentences must be clean, and their ids in the vocabulary."""
    documents = []
    try:
        source = open_source(settings)
        for unit in source.units():
            found, counts = source.documents(unit)
            assert all(count > 0 for count in counts.values())
            documents += found
    except UserError as error:
        return refused(error)
    sentences = [sentence for document in documents for sentence in document]
    assert all(document for document in documents)
    assert not [s for s in sentences if not s or len(s) > MAX_SENTENCE or UNCLEAN.search(s)]
    special = tokenizer().special_ids - {tokenizer().unk_id}
    for ids in tokenizer().encode_batch(sentences):
        assert all(0 <= index < tokenizer().vocab_size for index in ids.tolist())
        assert special.isdisjoint(ids.tolist())
    return True


def settings_of(kind: str, path: Path, draw: random.Random) -> CorpusConfig:
    return CorpusConfig(
        source=f"{kind}:{path}",
        sentences=draw.choice(("lines", "split")),
        strict=draw.random() < 0.5,
        language=draw.choice(("en", "ko", "xx")),
    )


def write(path: Path, data: bytes, draw: random.Random) -> Path:
    """The file, plain or compressed, damaged before or after."""
    if draw.random() < 0.25:
        ending = draw.choice(list(COMPRESS))
        path = path.with_suffix(path.suffix + ending)
        data = COMPRESS[ending](data if draw.random() < 0.5 else damaged(data, draw))
    path.write_bytes(damaged(data, draw))
    return path


def text_lines(draw: random.Random) -> list[str]:
    return [hostile_text(draw) for _ in range(draw.randrange(1, 8))]


def text(draw: random.Random, folder: Path) -> bool:
    data = draw.choice(("\n", "\n\n", "\r\n")).join(text_lines(draw))
    path = write(folder / "a.txt", data.encode(errors="replace"), draw)
    return reads_well(settings_of("text", path, draw))


def jsonl(draw: random.Random, folder: Path) -> bool:
    lines = [
        json.dumps({"text": line, "n": draw.choice(HOSTILE_JSON)}) for line in text_lines(draw)
    ]
    path = write(folder / "a.jsonl", "\n".join(lines).encode(), draw)
    return reads_well(settings_of("jsonl", path, draw))


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("case", [text, jsonl])
def test_a_hostile_corpus_is_refused_or_clean(case, inputs):
    fuzz(case, inputs)


GIB = 1 << 30
# Reads a file in a process of its own, which says how much memory it came to.
READ = """
import json, resource, sys
sys.path.insert(0, {root!r})
from bert_jax.errors import UserError
from bert_jax.config import CorpusConfig
from bert_jax.data.corpus import open_source
from bert_jax.data.shards import read_manifest
from bert_jax.data.tokenization import load_tokenizer
from bert_jax.training.metrics import read_metrics
from bert_jax.training.run_files import read_json
from pathlib import Path

def text(path, kind="text"):
    source = open_source(CorpusConfig(source=f"{{kind}}:{{path}}", sentences="lines"))
    units = documents = 0
    for unit in source.units():
        if units % 64 == 0:
            documents += len(source.documents(unit)[0])
        units += 1
    print(units, documents)

before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    {read}
except UserError as error:
    print(error)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "read", "told", "mebibytes"),
    [
        ("a.txt", "text({path!r})", "513 ", 64),
        ("a.jsonl", "text({path!r}, 'jsonl')", " 0", 600),
        ("vocab.txt", "load_tokenizer({path!r})", "larger than", 200),
        ("tokenizer.json", "load_tokenizer({path!r})", "larger than", 200),
        ("spiece.model", "load_tokenizer({path!r})", "larger than", 200),
        ("config.json", "read_json(Path({path!r}), 1 << 20)", "over 1 MiB", 16),
        ("metrics.jsonl", "read_metrics(Path({path!r}).parent)", "not JSON", 16),
        ("manifest.json", "read_manifest(Path({path!r}).parent)", "not a manifest", 16),
    ],
)
def test_a_line_of_a_gibibyte_is_read_within_bounds(name, read, told, mebibytes, tmp_path):
    path = tmp_path / name
    with path.open("wb") as file:  # sparse: it reads as NULs, and takes no room on the disk
        file.truncate(GIB - 1)
        file.seek(0, 2)
        file.write(b"\n")
    script = READ.format(root=str(Path(__file__).parents[2]), read=read.format(path=str(path)))
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    *lines, kibibytes = done.stdout.splitlines()
    assert told in " ".join(lines)
    assert int(kibibytes) < mebibytes * 1024
