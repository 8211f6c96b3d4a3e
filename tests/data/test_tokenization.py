"""Tokenizers against transformers, sentencepiece and BERT's algorithm written out in Python."""

import gzip
import io
import itertools
import json
import operator
import random
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.data.tokenization import MAX_TEXT, Tokenizer, load_tokenizer, train_tokenizer
from bert_jax.data.vocabulary_training import cut_text
from bert_jax.data.workers import worker_pool

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
KINDS = ["wordpiece", "unigram", "bpe"]
PROSE = [
    f"The {adjective} tokenizer cuts {count} words into naïve pieces; 단어를 자른다."
    for adjective in ("quick", "slow", "deterministic", "unbelievable", "bounded")
    for count in range(1900, 1960)
]
# What has broken tokenizers: controls, marks, CJK on either side of a boundary, jamo, emoji, words
# beyond 100 characters, special pieces in every spelling.
HOSTILE = [
    *(
        "\x00",
        "\ufffd",
        "\t",
        "\r\n",
        "\u00a0",
        "\u200b",
        "\u2028",
        "\u3000",
        "\x1c",
        "\x85",
        "\u00ad",
    ),
    *(
        "\u0301",
        "e\u0301",
        "É",
        "ß",
        "İ",
        "ﬁ",
        "Ǆ",
        "ς",
        "각",
        "\u1100\u1161\u11a8",
        "ㅋㅋㅋ",
        "漢字",
    ),
    *("\u3400", "\U00020000", "\uf900", "カタカナ", "\u3099", "𝔘𝔫𝔦", "👩‍🔬", "🇰🇷", "\u202e", "ไทย"),
    *(
        "नमस्ते",
        "[MASK]",
        "[SEP]",
        "[mask]",
        "[ MASK ]",
        "##ing",
        "▁",
        "<s>",
        "a" * 101,
        "`",
        "~",
        "$",
    ),
    *("^", "…", "—", "don't", "U.S.A.", "3.14", " ", "  ", "word", "안녕하세요", "x"),
]


def jsonl_lines(path: Path) -> Iterator[str]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for record in file:
            yield from (line for line in json.loads(record)["text"].split("\n") if line.strip())


def hostile_lines(count: int) -> list[str]:
    rng = random.Random(0)
    planes = [(0, 0x250), (0x300, 0x370), (0x1100, 0x1200), (0x2000, 0x2100), (0x3000, 0x3400)]
    planes += [(0x4E00, 0x9FFF), (0xA960, 0xA980), (0xAC00, 0xD7A4), (0xE000, 0x110000)]

    def fragment() -> str:
        if rng.random() < 0.5:
            return rng.choice(HOSTILE)
        return "".join(chr(rng.randrange(*rng.choice(planes))) for _ in range(rng.randrange(1, 6)))

    return ["".join(fragment() for _ in range(rng.randrange(1, 12))) for _ in range(count)]


def real_lines(folder: Path) -> list[str]:
    english = list(jsonl_lines(folder / "pretrain/enwiki.jsonl.gz"))[::10][:10_000]
    korean = list(jsonl_lines(folder / "pretrain/kowiki.jsonl.gz"))[::5][:5_000]
    reviews = (folder / "korean/nsmc-20k.tsv").read_text(encoding="utf-8").split("\n")[1:5_001]
    return [line[:1000] for line in english + korean + reviews]


def bert_ids(text: str, vocab: dict[str, int], lowercase: bool) -> list[int]:
    """The ids of BERT's published algorithm: clean, isolate CJK, split, longest match first."""
    spaced = ""
    for char in text:
        category = unicodedata.category(char)
        if char in "\t\n\r" or category == "Zs":
            spaced += " "
        elif char not in "\x00\ufffd" and not category.startswith("C"):
            spaced += f" {char} " if is_cjk(char) else char
    words = []
    for token in spaced.split(" "):
        if lowercase:
            decomposed = unicodedata.normalize("NFD", token.lower())
            token = "".join(char for char in decomposed if unicodedata.category(char) != "Mn")
        word = ""
        for char in token:
            if is_punctuation(char):
                words += [word, char]
                word = ""
            else:
                word += char
        words.append(word)
    return [index for word in words if word for index in wordpiece_ids(word, vocab)]


def wordpiece_ids(word: str, vocab: dict[str, int]) -> list[int]:
    ids, start = [], 0
    while start < len(word) <= 100:
        prefix = "##" if start else ""
        ends = [end for end in range(len(word), start, -1) if prefix + word[start:end] in vocab]
        if not ends:
            return [vocab["[UNK]"]]
        ids.append(vocab[prefix + word[start : ends[0]]])
        start = ends[0]
    return ids or [vocab["[UNK]"]]


def is_punctuation(char: str) -> bool:
    ascii_symbol = char.isascii() and char.isprintable() and not char.isalnum() and char != " "
    return ascii_symbol or unicodedata.category(char).startswith("P")


def is_settled(char: str) -> bool:
    """Whether `char` is what it was in Unicode 3.2: later versions differ between the libraries.

    Left out too: line and paragraph separators, white space to `tokenizers` and not to BERT.
    """
    now = unicodedata.category(char)
    return now == unicodedata.ucd_3_2_0.category(char) and now not in ("Cn", "Cs", "Zl", "Zp")


def is_cjk(char: str) -> bool:
    blocks = [(0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F)]
    blocks += [(0x2B740, 0x2B81F), (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)]
    return any(low <= ord(char) <= high for low, high in blocks)


def sentencepiece_model(lines: list[str], kind: str, rules: str, symbols: list[str]) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type=kind,
        vocab_size=4000,
        normalization_rule_name=rules,
        pad_id=3,
        control_symbols=["[CLS]", "[SEP]", "[MASK]"],
        user_defined_symbols=symbols,
        minloglevel=2,
    )
    return model.getvalue()


def as_lists(arrays: list[np.ndarray]) -> list[list[int]]:
    return [array.tolist() for array in arrays]


@pytest.fixture(scope="module", params=KINDS)
def trained(request: pytest.FixtureRequest) -> Tokenizer:
    return train_tokenizer(request.param, iter(PROSE), 400, lowercase=False)


@pytest.fixture(scope="module", params=["uncased", "cased"])
def released(request: pytest.FixtureRequest, test_data: Path) -> tuple[Tokenizer, Path, bool]:
    path = test_data / f"vocab/bert-base-{request.param}-vocab.txt"
    return load_tokenizer(path), path, request.param == "uncased"


def test_released_vocabularies_give_the_ids_of_transformers(released, test_data):
    from transformers import BertTokenizer

    tokenizer, path, lowercase = released
    # `split_special_tokens` is transformers' own way of taking "[MASK]" in the text for text.
    theirs = BertTokenizer(str(path), do_lower_case=lowercase, split_special_tokens=True)
    lines = real_lines(test_data) + hostile_lines(5_000)
    assert len(set(lines)) > 20_000
    expected = theirs(lines, add_special_tokens=False)["input_ids"]
    actual = as_lists(tokenizer.encode_batch(lines))
    assert [x for x in zip(lines, actual, expected, strict=True) if x[1] != x[2]][:5] == []


def test_released_vocabularies_give_the_ids_of_the_published_algorithm(released, test_data):
    tokenizer, path, lowercase = released
    vocab = {piece: index for index, piece in enumerate(path.read_text("utf-8").split("\n"))}
    every_character = [f"a{char}b" for char in map(chr, range(0x110000)) if is_settled(char)]
    varied = real_lines(test_data)[::80] + hostile_lines(500)
    settled = ["".join(filter(is_settled, line)) for line in varied]
    lines = every_character[::5] + settled
    actual = as_lists(tokenizer.encode_batch(lines))
    expected = [bert_ids(line, vocab, lowercase) for line in lines]
    assert [x for x in zip(lines, actual, expected, strict=True) if x[1] != x[2]][:5] == []


MARKS = [*'(),-."']  # as in ALBERT's own model


@pytest.mark.parametrize(
    ("kind", "rules", "symbols"),
    [
        ("unigram", "nmt_nfkc", ["<custom>"]),
        ("unigram", "nmt_nfkc", [*MARKS, "the"]),
        ("bpe", "identity", ["<custom>"]),
        ("bpe", "identity", MARKS),
    ],
)
def test_a_sentencepiece_model_gives_the_ids_of_sentencepiece(
    kind, rules, symbols, test_data, tmp_path
):
    lines = real_lines(test_data)[::8]
    model = sentencepiece_model(lines[::2], kind, rules, symbols)
    (tmp_path / "spiece.model").write_bytes(model)
    lines += [f"{line} \n {line}" for line in lines[::9]]
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spiece.model"))
    actual = as_lists(load_tokenizer(tmp_path).encode_batch(lines))
    different = [x != y for x, y in zip(actual, theirs.encode(lines), strict=True)]
    assert np.mean(different) < 0.005  # equal scores ("X I II", "X II I") and loose Hangul letters
    if (kind, rules) == ("bpe", "identity"):
        assert not any(different)


def test_a_saved_tokenizer_is_the_same_when_loaded(trained, tmp_path):
    trained.save(tmp_path)
    again = load_tokenizer(tmp_path)
    lines = hostile_lines(300) + PROSE
    assert again.digest == trained.digest
    assert again.pieces == trained.pieces
    assert np.array_equal(again.starts_word, trained.starts_word)
    assert as_lists(again.encode_batch(lines)) == as_lists(trained.encode_batch(lines))
    again.save(tmp_path / "again")
    for file in tmp_path.glob("*.*"):
        assert file.read_bytes() == (tmp_path / "again" / file.name).read_bytes()


def test_transformers_loads_saved_tokenizers_without_a_word(tmp_path):
    tokenizers = [train_tokenizer(kind, iter(PROSE), 400, lowercase=False) for kind in KINDS]
    folders = [tmp_path / kind for kind in KINDS]
    for tokenizer, folder in zip(tokenizers, folders, strict=True):
        tokenizer.save(folder)
    # transformers turns special pieces in the text into their ids, which is what we do not want
    lines = [x for x in hostile_lines(500) + PROSE if not any(piece in x for piece in SPECIALS)]
    script = """if True:
        import json, sys
        from transformers import AutoTokenizer
        lines, answers = json.load(sys.stdin), []
        for folder in sys.argv[1:]:
            t = AutoTokenizer.from_pretrained(folder)
            names = ("pad", "unk", "cls", "sep", "mask")
            roles = [getattr(t, name + "_token_id") for name in names]
            answers.append([len(t), roles, t(lines)["input_ids"], t("a", "b")["token_type_ids"]])
        print(json.dumps(answers))
    """
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", script, *map(str, folders)],
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "warn" not in done.stderr.lower()
    assert "tokenizer" not in done.stderr.lower()
    for t, answer in zip(tokenizers, json.loads(done.stdout), strict=True):
        size, roles, ids, types = answer
        assert size == t.vocab_size
        assert roles == [t.pad_id, t.unk_id, t.cls_id, t.sep_id, t.mask_id] == [0, 1, 2, 3, 4]
        assert ids == [[t.cls_id, *x, t.sep_id] for x in as_lists(t.encode_batch(lines))]
        assert sorted(set(types)) == [0, 1]


@given(
    texts=st.lists(
        st.lists(st.one_of(st.sampled_from(HOSTILE + SPECIALS), st.text(max_size=8))).map("".join)
    )
)
def test_no_text_gives_a_special_id_or_one_out_of_range(trained, texts):
    arrays = trained.encode_batch(texts)
    assert len(arrays) == len(texts)
    special = trained.special_ids - {trained.unk_id}
    for array in arrays:
        assert array.dtype == np.int32
        assert array.ndim == 1
        assert np.all((array >= 0) & (array < trained.vocab_size))
        assert special.isdisjoint(array.tolist())


@given(words=st.lists(st.sampled_from(["the", "quick", "tokenizer", "cuts", "1915", "words"])))
def test_decoding_gives_back_what_was_encoded(trained, words):
    text = " ".join(words)
    (ids,) = trained.encode_batch([text])
    assert trained.decode([trained.cls_id, *ids, trained.sep_id, trained.pad_id]) == text


def test_special_pieces_in_the_text_are_text(released):
    tokenizer, _, lowercase = released
    (ids,) = tokenizer.encode_batch(["[MASK] [SEP][UNK]"])
    pieces = [tokenizer.pieces[index] for index in ids]
    assert "".join(pieces).replace("##", "") == (
        "[mask][sep][unk]" if lowercase else "[MASK][SEP][UNK]"
    )


def test_special_ids_of_a_released_vocabulary(released):
    tokenizer, _, _ = released
    t = tokenizer
    assert [t.pad_id, t.unk_id, t.cls_id, t.sep_id, t.mask_id] == [0, 100, 101, 102, 103]
    assert t.special_ids == {0, 100, 101, 102, 103}
    assert t.pieces[103] == "[MASK]"


def test_continued_words_are_told_from_new_ones(trained):
    assert trained.starts_word.shape == (trained.vocab_size,)
    assert trained.starts_word[:5].all()
    (ids,) = trained.encode_batch(["unbelievables tokenizersss wordsss"])
    assert len(ids) > 3
    assert trained.starts_word[ids].sum() == 3
    assert trained.starts_word[ids[0]]


def test_a_long_text_gives_the_ids_of_its_parts(trained):
    sentence = PROSE[0].replace(" ", "  ") + "\n"
    (whole,) = trained.encode_batch([sentence * 1000])
    (one,) = trained.encode_batch([sentence])
    assert np.array_equal(whole, np.tile(one, 1000))
    (endless,) = trained.encode_batch(["a" * (3 * MAX_TEXT)])
    assert len(endless) > 0


@given(text=st.text("ab \n", max_size=60), limit=st.integers(1, 10))
def test_parts_of_a_text_add_up_and_start_with_white_space(text, limit):
    parts = list(cut_text(text, limit))
    assert "".join(parts) == text
    assert all(len(part) <= limit for part in parts)
    for before, part in itertools.pairwise(parts):
        assert part[0] in " \n" or not set(before[1:]) & set(" \n")


def test_lone_surrogates_are_left_out(trained):
    assert as_lists(trained.encode_batch(["wo\ud800rds"])) == as_lists(
        trained.encode_batch(["words"])
    )


def test_a_worker_process_can_be_sent_a_tokenizer(trained):
    with worker_pool(1) as pool:
        digest = pool.submit(operator.attrgetter("digest"), trained).result()
        encoded = pool.submit(trained.encode_batch, PROSE).result()
    assert digest == trained.digest
    assert as_lists(encoded) == as_lists(trained.encode_batch(PROSE))
