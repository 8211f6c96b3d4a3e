import dataclasses
import gzip
import itertools
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_corpus import SYLLABLES, VOCAB_SIZE, contents, make_documents, write_lines

import bert_jax
from bert_jax.config import CorpusConfig
from bert_jax.data import corpus as corpus_module
from bert_jax.data import preparation
from bert_jax.data.preparation import choose_sides
from bert_jax.data.shards import open_shards, read_manifest
from bert_jax.data.tokenization import load_tokenizer, train_tokenizer
from bert_jax.data.units import DROPPED, HELDOUT, TRAIN
from bert_jax.errors import UserError
from bert_jax.prepare import default_directory, prepare


def decoded(directory: Path, split: str) -> list[list[str]]:
    """The documents of a split, back as text."""
    tokenizer = load_tokenizer(directory / "tokenizer")
    documents = []
    for shard in open_shards(directory, split):
        ids = np.split(shard.tokens, shard.sentences[1:-1])
        texts = [tokenizer.decode(sentence) for sentence in ids]
        ends = shard.documents.tolist()
        documents += [texts[a:b] for a, b in itertools.pairwise(ends)]
    return documents


def squeezed(documents: list[list[str]]) -> list[list[str]]:
    """Without what a tokenizer need not give back: white space and case."""
    return [["".join(sentence.lower().split()) for sentence in d] for d in documents]


@pytest.fixture
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut a small corpus into many units and several shards."""
    monkeypatch.setattr(corpus_module, "UNIT_BYTES", 2**13)
    monkeypatch.setattr(preparation, "SHARD_TEXT_BYTES", 2**16)


def test_every_document_lands_on_one_side_whole(tmp_path: Path, small_units: None) -> None:
    documents = make_documents(600)
    corpus = write_lines(tmp_path / "corpus.txt", documents)
    manifest = prepare(corpus, VOCAB_SIZE, tmp_path / "out", progress=False)
    train, heldout = (squeezed(decoded(tmp_path / "out", s)) for s in ("train", "heldout"))
    assert sorted(train + heldout) == sorted(squeezed(documents))
    wanted = iter(squeezed(documents))
    assert all(document in wanted for document in train), "training documents keep their order"
    assert 30 <= len(heldout) <= 90
    assert len(manifest.splits["train"].shards) > 2
    assert manifest == read_manifest(tmp_path / "out")
    assert manifest.splits["train"].documents == len(train)
    assert not (tmp_path / "out.partial").exists()


def test_jsonl_and_prose(tmp_path: Path) -> None:
    documents = [[f"{s[0].upper()}{s[1:-2]}." for s in d] for d in make_documents(80)]
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        for document in documents:
            file.write(json.dumps({"body": " ".join(document)}) + "\n")
    corpus = CorpusConfig(source=f"jsonl:{tmp_path}/*.gz", text_field="body", heldout_fraction=0.1)
    prepare(corpus, VOCAB_SIZE, tmp_path / "out", progress=False)
    found = [d for split in ("train", "heldout") for d in decoded(tmp_path / "out", split)]
    joined = ["".join(document) for document in squeezed(found)]
    assert sorted(joined) == sorted("".join(document) for document in squeezed(documents))
    sentences, wanted = sum(map(len, found)), sum(map(len, documents))
    assert 0.9 * wanted <= sentences <= wanted, "an end such as `no.` may be an abbreviation"


def test_two_sources_are_one_corpus(tmp_path: Path) -> None:
    documents = make_documents(120)
    whole = write_lines(tmp_path / "whole.txt", documents)
    first, second = (
        write_lines(tmp_path / f"{name}.txt", part).source
        for name, part in (("first", documents[:70]), ("second", documents[70:]))
    )
    both = dataclasses.replace(whole, source=f"{first} + {second}")
    for corpus, name in ((whole, "out"), (both, "two")):
        prepare(corpus, VOCAB_SIZE, tmp_path / name, progress=False)
    assert read_manifest(tmp_path / "two").source == both.source
    one, two = contents(tmp_path / "out"), contents(tmp_path / "two")
    assert one.pop("manifest.json") != two.pop("manifest.json")
    assert one == two


@pytest.mark.parametrize("tokenizer", ["unigram", "bpe"])
def test_other_vocabularies(tmp_path: Path, tokenizer: str) -> None:
    corpus = write_lines(tmp_path / "corpus.txt", make_documents(80))
    corpus.tokenizer = tokenizer
    manifest = prepare(corpus, VOCAB_SIZE, tmp_path / "out", workers=1, progress=False)
    assert manifest.tokenizer_digest == load_tokenizer(tmp_path / "out" / "tokenizer").digest
    assert manifest.splits["train"].tokens > 1000


def test_the_same_bytes_whatever_the_workers(tmp_path: Path, small_units: None) -> None:
    corpus = write_lines(tmp_path / "corpus.txt", make_documents(400))
    for workers in (1, 2, 3):
        prepare(corpus, VOCAB_SIZE, tmp_path / f"out{workers}", workers=workers, progress=False)
    first = contents(tmp_path / "out1")
    assert len(first) > 12
    assert contents(tmp_path / "out2") == first
    assert contents(tmp_path / "out3") == first


def test_copies_are_dropped_and_near_copies_of_heldout_too(tmp_path: Path) -> None:
    documents = [d for d in make_documents(300) if len(d) >= 4]
    corpus = write_lines(tmp_path / "corpus.txt", documents)
    prepare(corpus, VOCAB_SIZE, tmp_path / "plain", progress=False)
    heldout = squeezed(decoded(tmp_path / "plain", "heldout"))
    near = [[*d[:-1], "another end"] for d in documents]
    write_lines(tmp_path / "corpus.txt", [*documents, *documents[:7], *near])
    manifest = prepare(corpus, VOCAB_SIZE, tmp_path / "copied", progress=False)
    assert manifest.counts["duplicate_documents"] == 7
    assert manifest.counts["near_duplicates_of_heldout"] >= len(heldout)
    kept = sum(split.documents for split in manifest.splits.values())
    near_copies = manifest.counts["near_duplicates_of_heldout"]
    assert kept + near_copies + 7 == len(documents) + 7 + len(near)
    held = {s for d in squeezed(decoded(tmp_path / "copied", "heldout")) for s in d}
    for document in squeezed(decoded(tmp_path / "copied", "train")):
        assert np.mean([sentence in held for sentence in document]) < 0.5


@given(
    hashes=st.lists(st.integers(0, 12), min_size=4, max_size=30).filter(lambda h: len(set(h)) >= 4),
    data=st.data(),
)
def test_sides(hashes: list[int], data: st.DataObject) -> None:
    rule = data.draw(st.sets(st.sampled_from(hashes), max_size=len(set(hashes)) - 2))
    heldout = np.array([value in rule for value in hashes])
    sides = choose_sides(np.array(hashes, np.uint64), heldout).tolist()
    for index, (value, side) in enumerate(zip(hashes, sides, strict=True)):
        assert (side == DROPPED) == (value in hashes[:index])
    held = {value for value, side in zip(hashes, sides, strict=True) if side == HELDOUT}
    others = sorted(set(hashes) - rule)
    assert held == rule | set(others[: max(0, 2 - len(rule))])
    assert sides.count(TRAIN) == len(set(hashes)) - len(held)


@pytest.mark.parametrize(
    ("count", "fraction", "complaint"),
    [
        (0, 0.1, "empty"),
        (1, 0.1, "1 held out"),
        (3, 0.1, "two of each"),
        (3, 0.9, "to train on"),
        (40, 0.0, "heldout_fraction"),
    ],
)
def test_too_few_documents(tmp_path: Path, count: int, fraction: float, complaint: str) -> None:
    corpus = write_lines(tmp_path / "corpus.txt", make_documents(count))
    corpus.heldout_fraction = fraction
    with pytest.raises(UserError, match=complaint):
        prepare(corpus, VOCAB_SIZE, tmp_path / "out", workers=1, progress=False)


def test_just_enough_documents(tmp_path: Path) -> None:
    corpus = write_lines(tmp_path / "corpus.txt", make_documents(4, seed=5))
    corpus.heldout_fraction = 0.01
    manifest = prepare(corpus, VOCAB_SIZE, tmp_path / "out", workers=1, progress=False)
    assert manifest.splits["heldout"].documents == 2
    assert manifest.splits["train"].documents == 2


@pytest.mark.parametrize("kind", ["wordpiece", "unigram"])
def test_a_vocabulary_of_lower_case_keeps_no_capitals(tmp_path: Path, kind: str) -> None:
    """Its own rules count, and what is asked against them is not passed over."""
    documents = make_documents(40)
    sentences = itertools.chain.from_iterable(documents)
    train_tokenizer(kind, sentences, 100, lowercase=True).save(tmp_path / "vocab")
    corpus = write_lines(tmp_path / "corpus.txt", documents)
    corpus.vocab, corpus.lowercase = str(tmp_path / "vocab"), False
    with pytest.raises(UserError, match="says itself that text is put in lower case"):
        prepare(corpus, VOCAB_SIZE, tmp_path / "out", workers=1, progress=False)
    assert not (tmp_path / "out").exists()


def test_an_output_that_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = write_lines(tmp_path / "corpus.txt", make_documents(40))
    output = tmp_path / "out"
    output.mkdir()  # empty: as good as none
    manifest = prepare(corpus, VOCAB_SIZE, output, workers=1, progress=False)
    before = contents(output)
    assert prepare(corpus, VOCAB_SIZE, output) == manifest
    assert "prepared already" in capsys.readouterr().out
    with pytest.raises(UserError, match="prepared with vocab_size=200, not 201"):
        prepare(corpus, VOCAB_SIZE + 1, output)
    other = dataclasses.replace(corpus, lowercase=False)
    with pytest.raises(UserError, match="prepared with lowercase=True, not False"):
        prepare(other, VOCAB_SIZE, output)
    assert contents(output) == before
    with pytest.raises(UserError, match="holds no token shards"):
        prepare(corpus, VOCAB_SIZE, tmp_path)
    with pytest.raises(UserError, match="holds no token shards"):
        prepare(corpus, VOCAB_SIZE, tmp_path / "corpus.txt")


def test_an_output_that_another_process_makes_meanwhile(tmp_path, monkeypatch):
    corpus = write_lines(tmp_path / "corpus.txt", make_documents(50))
    made = []

    def open_source(corpus):
        monkeypatch.undo()
        made.append(prepare(corpus, VOCAB_SIZE, tmp_path / "out", workers=1, progress=False))
        return corpus_module.open_source(corpus)

    monkeypatch.setattr("bert_jax.prepare.open_source", open_source)
    found = prepare(corpus, VOCAB_SIZE, tmp_path / "out", workers=1, progress=False)
    assert [found] == made
    assert not (tmp_path / "out.partial").exists()


def syllables(vocab: Path) -> list[str]:
    """The pieces of a vocabulary of the corpus's syllables, written to a file."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *SYLLABLES]
    pieces += [f"##{syllable}" for syllable in SYLLABLES]
    vocab.write_text("\n".join(pieces) + "\n")
    return pieces


def test_unknown_pieces_of_training_are_counted(tmp_path: Path) -> None:
    documents = [[f"{first} ☃ ☃", *rest] for first, *rest in make_documents(40)]
    corpus = write_lines(tmp_path / "corpus.txt", documents)
    syllables(tmp_path / "vocab.txt")
    corpus.vocab = str(tmp_path / "vocab.txt")
    manifest = prepare(corpus, 30522, tmp_path / "out", workers=1, progress=False)
    assert manifest.counts["unknown_pieces"] == 2 * manifest.splits["train"].documents


@pytest.mark.parametrize("lowercase", [True, False])
def test_vowels_that_an_uncased_vocabulary_loses_are_counted(tmp_path: Path, lowercase) -> None:
    """Of Hindi and Thai; accents and the points of Hebrew are meant to go."""
    text = "\u0939\u0948 \u0e17\u0e35\u0e48 cafe\u0301 \u05d1\u05bc"
    documents = [[f"{first} {text}", *rest] for first, *rest in make_documents(40)]
    corpus = write_lines(tmp_path / "corpus.txt", documents)
    corpus.lowercase = lowercase
    manifest = prepare(corpus, 300, tmp_path / "out", workers=1, progress=False)
    lost = 2 * manifest.splits["train"].documents if lowercase else 0
    assert manifest.counts.get("stripped_vowel_signs", 0) == lost


def test_a_vocabulary_of_ones_own(tmp_path: Path) -> None:
    corpus = write_lines(tmp_path / "corpus.txt", make_documents(40))
    vocab = tmp_path / "vocab.txt"
    pieces = syllables(vocab)
    corpus.vocab = str(vocab)
    manifest = prepare(corpus, 30522, tmp_path / "out", workers=1, progress=False)
    assert manifest.vocab_size == len(pieces)
    assert manifest.counts.get("unknown_pieces", 0) == 0
    vocab.write_text("\n".join(piece for piece in pieces if piece != "[MASK]") + "\n")
    with pytest.raises(UserError, match="MASK"):
        prepare(corpus, 30522, tmp_path / "other", workers=1, progress=False)
    assert not (tmp_path / "other.partial").exists()  # told before the text is read
    vocab.write_text("\n".join([*pieces, "more"]) + "\n")
    with pytest.raises(UserError, match="prepared with another vocabulary"):
        prepare(corpus, 30522, tmp_path / "out", workers=1, progress=False)
    vocab.unlink()
    assert prepare(corpus, 30522, tmp_path / "out", workers=1, progress=False) == manifest


def with_words(folder: Path, *words: str) -> CorpusConfig:
    """A small corpus, and words to add to the vocabulary that is trained on it."""
    corpus = write_lines(folder / "corpus.txt", make_documents(40))
    (folder / "words.txt").write_text("".join(word + "\n" for word in words))
    corpus.new_tokens = str(folder / "words.txt")
    return corpus


def test_new_tokens_are_among_the_pieces_asked_for(tmp_path: Path) -> None:
    corpus = with_words(tmp_path, "zebra", "##zz")
    manifest = prepare(corpus, VOCAB_SIZE, tmp_path / "out", workers=1, progress=False)
    assert manifest.vocab_size == VOCAB_SIZE
    tokenizer = load_tokenizer(tmp_path / "out" / "tokenizer")
    assert tokenizer.vocab_size == VOCAB_SIZE
    assert tokenizer.pieces[-2:] == ["zebra", "##zz"]


def test_new_tokens_that_training_finds_by_itself_are_no_mistake(tmp_path: Path) -> None:
    corpus = with_words(tmp_path, "zebra", SYLLABLES[0])
    manifest = prepare(corpus, VOCAB_SIZE, tmp_path / "out", workers=1, progress=False)
    pieces = load_tokenizer(tmp_path / "out" / "tokenizer").pieces
    assert pieces[-1] == "zebra"
    assert SYLLABLES[0] in pieces
    assert manifest.vocab_size == len(pieces) == VOCAB_SIZE - 1


def test_new_tokens_that_leave_no_room(tmp_path: Path) -> None:
    corpus = with_words(tmp_path, "zebra", "##zz")
    with pytest.raises(
        UserError, match=r"vocab_size=33: \S+words.txt adds 2 .* at least 32"
    ) as told:
        prepare(corpus, 33, tmp_path / "out", workers=1, progress=False)
    assert "\n" not in str(told.value)
    assert not (tmp_path / "out.partial").exists()  # told before the text is read
    assert prepare(corpus, 34, tmp_path / "out", workers=1, progress=False).vocab_size <= 34


def test_new_tokens_in_a_bad_file_are_told_first(tmp_path: Path) -> None:
    corpus = with_words(tmp_path)
    corpus.new_tokens = str(tmp_path / "wrods.txt")
    with pytest.raises(UserError, match=r"wrods\.txt: cannot be read"):
        prepare(corpus, VOCAB_SIZE, tmp_path / "out", workers=1, progress=False)
    assert not (tmp_path / "out.partial").exists()


@pytest.mark.parametrize(
    ("word", "tokenizer", "message"),
    [
        ("zebra", "unigram", r"tokenizer='unigram' takes no new_tokens \(\S+words.txt\)"),
        ("two words", "wordpiece", "new token 'two words': no text becomes it"),
        ("Zebra", "wordpiece", "new token 'Zebra': no text becomes it"),
    ],
)
def test_new_tokens_that_no_vocabulary_will_take_are_told_first(
    word: str, tokenizer: str, message: str, tmp_path: Path
) -> None:
    corpus = with_words(tmp_path, word)
    corpus.tokenizer = tokenizer
    with pytest.raises(UserError, match=message):
        prepare(corpus, VOCAB_SIZE, tmp_path / "out", workers=1, progress=False)
    assert not (tmp_path / "out.partial").exists()


@pytest.mark.parametrize(
    "words", [["yak"], ["##zz"], ["##zz", "zebra"], ["zebra", "##zz", "yak"], []]
)
def test_other_new_tokens_are_not_prepared_already(tmp_path: Path, words: list[str]) -> None:
    corpus = with_words(tmp_path, "zebra", "##zz")
    manifest = prepare(corpus, VOCAB_SIZE, tmp_path / "out", workers=1, progress=False)
    assert prepare(corpus, VOCAB_SIZE, tmp_path / "out", progress=False) == manifest
    with_words(tmp_path, *words)
    with pytest.raises(UserError, match=r"prepared with another vocabulary than \S+words.txt"):
        prepare(corpus, VOCAB_SIZE, tmp_path / "out", progress=False)
    (tmp_path / "words.txt").unlink()  # shards outlive it
    assert prepare(corpus, VOCAB_SIZE, tmp_path / "out", progress=False) == manifest


def test_other_new_tokens_make_the_shards_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    corpus = with_words(tmp_path, "zebra", "##zz")
    with monkeypatch.context() as patched:
        patched.setattr("bert_jax.prepare.encode_corpus", stop)
        with pytest.raises(KeyboardInterrupt):
            prepare(corpus, VOCAB_SIZE, tmp_path / "out", workers=1, progress=False)
    assert (tmp_path / "out.partial" / "done" / "tokenizer").is_dir()
    with_words(tmp_path, "yak")
    for output in ("out", "fresh"):
        prepare(corpus, VOCAB_SIZE, tmp_path / output, workers=1, progress=False)
    assert load_tokenizer(tmp_path / "out" / "tokenizer").pieces[-1] == "yak"
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


def test_what_cannot_be_replaced_is_told_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = write_lines(tmp_path / "corpus.txt", make_documents(40))
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    monkeypatch.chdir(tmp_path / "empty")
    for output in (Path(), tmp_path / "empty", tmp_path / "link"):
        with pytest.raises(UserError, match="the directory you are in"):
            prepare(corpus, VOCAB_SIZE, output, workers=1, progress=False)
    assert not list((tmp_path / "empty").iterdir())


def test_a_name_for_every_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    corpus = CorpusConfig(source="text:a/*.txt")
    here = default_directory(corpus, 100)
    assert here.parent == tmp_path / "bert_jax"
    assert default_directory(CorpusConfig(source="text:a/*.txt"), 100) == here
    monkeypatch.chdir(tmp_path)
    others = [
        default_directory(corpus, 100),
        default_directory(corpus, 101),
        default_directory(dataclasses.replace(corpus, lowercase=False), 100),
        default_directory(CorpusConfig(), 100),
    ]
    assert len({here, *others}) == 5
    vocab = CorpusConfig(source=f"text:{tmp_path}/*.txt", vocab="vocab.txt")
    first = default_directory(vocab, 100)
    several = CorpusConfig(source="docstrings: + parquet:a.parquet")
    there = default_directory(several, 100)
    assert there.name.startswith("docstrings-parquet-")
    monkeypatch.chdir("/")
    assert default_directory(vocab, 100) != first
    assert default_directory(several, 100) != there


# What follows runs the command in a process of its own, on units of 8 KiB and shards of 64 KiB.


def test_workers_do_not_import_the_main_module(tmp_path: Path) -> None:
    """A script without a guard would start itself again in each worker."""
    corpus = write_lines(tmp_path / "corpus.txt", make_documents(40))
    script = tmp_path / "script.py"
    script.write_text(
        "from bert_jax.config import CorpusConfig\n"
        "from bert_jax.prepare import prepare\n"
        f"corpus = CorpusConfig(source={corpus.source!r}, sentences='lines')\n"
        f"print(prepare(corpus, 200, {str(tmp_path / 'out')!r}, progress=False).vocab_size)\n"
    )
    told = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(Path(bert_jax.__file__).parents[1])},
    )
    assert told.stdout == "200\n"


def test_the_command_is_light(tmp_path: Path) -> None:
    probe = "import sys, bert_jax.prepare; print({'jax', 'tensorflow'} & set(sys.modules))"
    told = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert told.stdout == "set()\n"


def command(*flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bert_jax.prepare", *flags], capture_output=True, text=True
    )


def test_help_tells_every_setting() -> None:
    told = " ".join(command("--help").stdout.split())
    for spec in dataclasses.fields(CorpusConfig):
        assert f"--{spec.name}" in told
        assert spec.metadata["help"] in told
    assert "python -m bert_jax.prepare --source='text:books/*.txt'" in told


def test_a_source_that_is_given_twice_is_two(tmp_path: Path) -> None:
    told = command(f"--output={tmp_path / 'out'}", "--source=text:one.txt", "--source=docstrings:")
    assert (told.returncode, told.stderr) == (2, "error: one.txt: no such file\n")


def test_the_next_command_can_be_pasted(tmp_path: Path) -> None:
    corpus, output = write_lines(tmp_path / "corpus.txt", make_documents(40)), tmp_path / "ko wp"
    flags = (f"--source={corpus.source}", "--sentences=lines", "--vocab_size=200")
    last = command(*flags, f"--output={output}").stdout.splitlines()[-1]
    assert last.startswith("next: python -m bert_jax.train ")
    assert f"--config.data.dir={output}" in shlex.split(last)


@pytest.mark.parametrize(
    ("flag", "complaint"),
    [
        ("--source=text:nowhere.txt", "nowhere.txt"),
        ("--source=text:nowhere/*.txt", "nowhere/*.txt"),
        ("--source=json:x", "json:x"),
        ("--sentences=words", "--sentences"),
        ("--heldout_fraction=1.5", "heldout_fraction"),
        ("--workers=0", "--workers=0"),
        ("--vocab_size=0", "vocab_size=0"),
        ("--vocab_sise=10", "--vocab_sise"),
    ],
)
def test_bad_usage(tmp_path: Path, flag: str, complaint: str) -> None:
    told = command(f"--output={tmp_path / 'out'}", flag)
    assert told.returncode == 2
    assert told.stderr.startswith("error: ")
    assert told.stderr.count("\n") == 1
    assert complaint in told.stderr
    assert not list(tmp_path.iterdir())


def test_real_text(test_data: Path, tmp_path: Path) -> None:
    with gzip.open(test_data / "pretrain" / "enwiki.jsonl.gz", "rt") as file:
        lines = [next(file) for _ in range(200)]
    (tmp_path / "wiki.jsonl").write_text("".join(lines))
    corpus = CorpusConfig(source=f"jsonl:{tmp_path}/wiki.jsonl")
    manifest = prepare(corpus, 8000, tmp_path / "out", progress=False)
    train = manifest.splits["train"]
    assert train.documents + manifest.splits["heldout"].documents >= 195
    assert train.sentences > 5 * train.documents
    assert manifest.counts.get("unknown_pieces", 0) < train.tokens / 1000
