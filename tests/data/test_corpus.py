"""Sources, cleaning and sentence splitting, on files with everything that files go wrong with."""

import gzip
import io
import json
from pathlib import Path

import pyarrow as pa
import pytest
from compressing import COMPRESS
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet as pq
from small_corpus import read, read_apart

from bert_jax.config import CorpusConfig
from bert_jax.data import corpus as corpus_module
from bert_jax.data.corpus import cut_json, cut_text, open_source, pack
from bert_jax.data.documents import (
    MAX_SENTENCE,
    Piece,
    Unit,
    json_documents,
    text_documents,
)
from bert_jax.data.workers import worker_pool
from bert_jax.errors import UserError


def write(path: Path, data: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def text_unit(data: bytes) -> Unit:
    return Unit((Piece("file.txt", data),), len(data))


# Layouts


def test_lines_are_sentences_and_blank_lines_end_documents(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "\n\nOne. Still one.\nTwo.\n \t\nThree.\n\n\n\nFour.\n")
    write(tmp_path / "b.txt", "Five.")
    documents, counts = read(f"text:{tmp_path}/*.txt", sentences="lines")
    assert documents == [["One. Still one.", "Two."], ["Three."], ["Four."], ["Five."]]
    assert not counts


def test_prose_is_a_document_a_file_with_paragraphs_split(tmp_path: Path) -> None:
    write(tmp_path / "book.txt", "Dr. Smith went\nhome. He slept.\n\n\nIt\train-\ned? No!\n")
    write(tmp_path / "empty.txt", "")
    documents, counts = read(f"text:{tmp_path}/*")
    assert documents == [["Dr. Smith went home.", "He slept.", "It rain- ed?", "No!"]]
    assert not counts


def test_globs_cross_folders_and_files_come_sorted(tmp_path: Path) -> None:
    for name in ("c/d/e.txt", "b.txt", "a/z.txt"):
        write(tmp_path / name, name)
    (tmp_path / "folder.txt").mkdir()
    documents, _ = read(f"text:{tmp_path}/**/*.txt")
    assert documents == [["a/z.txt"], ["b.txt"], ["c/d/e.txt"]]


def test_a_file_with_glob_characters_in_its_name_is_found(tmp_path: Path) -> None:
    path = write(tmp_path / "[draft].txt", "Text.")
    assert read(f"text:{path}")[0] == [["Text."]]


@pytest.mark.parametrize("ending", COMPRESS)
def test_a_compressed_file_reads_as_the_plain_one(tmp_path: Path, ending: str) -> None:
    text = "One sentence here. Another there.\n\n" * 1000
    plain = write(tmp_path / "plain.txt", text)
    packed = write(tmp_path / f"packed.txt{ending}", COMPRESS[ending](text.encode()))
    assert read(f"text:{plain}") == read(f"text:{packed}")


def test_json_lines_hold_a_document_each(tmp_path: Path) -> None:
    records = [{"body": "One. Two.\nThree", "n": 1}, {"body": " \n"}, {"body": "Four\u2028five."}]
    path = write(
        tmp_path / "a.jsonl.gz", gzip.compress("\n\n".join(map(json.dumps, records)).encode())
    )
    documents, counts = read(f"jsonl:{path}", text_field="body")
    assert documents == [["One.", "Two.", "Three"], ["Four five."]]
    assert counts == {"empty_documents": 1}
    documents, _ = read(f"jsonl:{path}", text_field="body", sentences="lines")
    assert documents == [["One. Two.", "Three"], ["Four five."]]


def test_several_sources_are_read_one_after_the_other(tmp_path: Path) -> None:
    write(tmp_path / "a + b.txt", "One. Two.")
    write(tmp_path / "c.jsonl.xz", COMPRESS[".xz"](b'{"text": "Three."}\n{"text": "Four."}'))
    pq.write_table(pa.table({"text": ["Five.\nSix."]}), tmp_path / "d.parquet")
    sources = [
        f"text:{tmp_path}/a + b.txt",
        f"jsonl:{tmp_path}/*.xz",
        f"parquet:{tmp_path}/*.parquet",
    ]
    documents, counts = read(" + ".join(sources))
    assert documents == [["One.", "Two."], ["Three."], ["Four."], ["Five.", "Six."]]
    assert not counts
    source = open_source(CorpusConfig(source=" + ".join(reversed(sources))))
    with worker_pool(1) as pool:
        parsed = [pool.submit(source.documents, unit).result()[0] for unit in source.units()]
    assert parsed == [[["Five.", "Six."]], [["Three."], ["Four."]], [["One.", "Two."]]]


def test_korean_sentences_are_split(test_data: Path) -> None:
    source = open_source(
        CorpusConfig(source=f"jsonl:{test_data}/pretrain/kowiki.jsonl.gz", language="ko")
    )
    documents, counts = source.documents(next(source.units()))
    assert not counts
    assert sum(map(len, documents)) > 5 * len(documents)


def test_wikipedia_keeps_every_article_and_letter(test_data: Path) -> None:
    path = test_data / "pretrain/enwiki.jsonl.gz"
    source = open_source(CorpusConfig(source=f"jsonl:{path}"))
    unit = next(source.units())
    documents, counts = source.documents(unit)
    with gzip.open(path, "rt") as stream:
        texts = [json.loads(line)["text"] for line, _ in zip(stream, documents, strict=False)]
    assert not counts
    assert ["".join(doc).replace(" ", "") for doc in documents] == [
        "".join(t.split()) for t in texts
    ]
    assert 3 < sum(map(len, documents)) / len(documents) < 100


# Cleaning


@pytest.mark.parametrize("sentences", ["lines", "split"])
def test_marks_and_control_characters_go(sentences: str) -> None:
    data = b"\xef\xbb\xbfOne\x00 t\x07wo\x1b.\r\n\r\nThr\xc2\x9fee\x0bfo\xef\xbb\xbfur.\r"
    documents, counts = text_documents(CorpusConfig(sentences=sentences), text_unit(data))
    assert [s for document in documents for s in document] == ["One two.", "Three four."]
    assert counts == {"control_characters": 5}


def test_invalid_utf8_is_replaced_and_counted() -> None:
    data = b"Fine. \xff\xfe Bad \xe2\x82 half. \xef\xbf\xbd was there."
    documents, counts = text_documents(CorpusConfig(sentences="lines"), text_unit(data))
    assert documents == [["Fine. \ufffd\ufffd Bad \ufffd half. \ufffd was there."]]
    assert counts == {"invalid_utf8": 3}


def test_strict_names_file_and_byte(tmp_path: Path) -> None:
    good = b"A sentence.\n\n" * 200_000
    path = write(tmp_path / "a.txt", good + b"bad \xff")
    with pytest.raises(UserError, match=rf"a\.txt: byte {len(good) + 4} "):
        read(f"text:{path}", strict=True)
    line = b'{"text": "fine"}\n'
    path = write(tmp_path / "a.jsonl", line * 100_000 + b'{"text": "\xff"}\n')
    with pytest.raises(UserError, match=rf"a\.jsonl: byte {len(line) * 100_000 + 10} "):
        read(f"jsonl:{path}", strict=True)


def test_utf16_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "Windows text.".encode("utf-16"))
    with pytest.raises(UserError, match="UTF-16"):
        read(f"text:{path}")


def test_broken_json_is_counted_or_refused(tmp_path: Path) -> None:
    lines = [
        '{"text": "Good."}',
        '{"text": "cut',
        '["text"]',
        '{"title": "no text"}',
        '{"text": 5}',
        "[" * 100_000,
        '{"text": "Half \\ud83d of a pair."}',
        '{"text": "' + "9" * 5000 + '", "n": ' + "9" * 5000 + "}",
    ]
    path = write(tmp_path / "a.jsonl", "\n".join(lines))
    documents, counts = read(f"jsonl:{path}")
    assert documents[:2] == [["Good."], ["Half \ufffd of a pair."]]
    assert counts["bad_json"] == 3
    assert counts["missing_text"] == 3
    assert counts["invalid_utf8"] == 1
    told = [
        "Unterminated",
        "JSON object .* not list",
        "'text'; there are 'title'",
        "not text .*int",
    ]
    for number, (line, why) in enumerate(zip(lines[1:6], [*told, "recursion"], strict=True), 2):
        bad = write(tmp_path / "bad.jsonl", '{"text": "Good."}\n' * (number - 1) + line)
        with pytest.raises(UserError, match=rf"bad\.jsonl:{number}: .*{why}"):
            read(f"jsonl:{bad}", strict=True)


def test_a_field_that_is_nowhere_is_named_with_those_that_are(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{\n{"title": "T", "body": "B"}\n{"url": "U"}\n[]\n')
    with pytest.raises(UserError, match=r"'text'.*'title', 'body', 'url'"):
        open_source(CorpusConfig(source=f"jsonl:{path}"))


def test_endless_sentences_are_cut_at_words() -> None:
    words = [f"word{n}" for n in range(2000)]
    data = (" ".join(words) + "\n" + "x" * (2 * MAX_SENTENCE + 1)).encode()
    documents, counts = text_documents(CorpusConfig(sentences="lines"), text_unit(data))
    assert counts == {"long_sentences": 2}
    assert max(map(len, documents[0])) == MAX_SENTENCE
    assert " ".join(documents[0][:-3]).split() == words
    assert [len(s) for s in documents[0][-3:]] == [MAX_SENTENCE, MAX_SENTENCE, 1]


def test_an_endless_word_after_others_is_cut_by_itself() -> None:
    data = ("one two " + "x" * (2 * MAX_SENTENCE + 1) + " three").encode()
    (document,), counts = text_documents(CorpusConfig(sentences="lines"), text_unit(data))
    assert counts == {"long_sentences": 1}
    assert document == ["one two", "x" * MAX_SENTENCE, "x" * MAX_SENTENCE, "x three"]


@given(st.text(), st.sampled_from(["lines", "split"]))
def test_no_letter_is_lost_and_no_sentence_is_empty(text: str, sentences: str) -> None:
    config = CorpusConfig(sentences=sentences)
    unit = text_unit(text.encode(errors="replace"))
    documents, _ = text_documents(config, unit)
    assert all(s and s == " ".join(s.split()) for document in documents for s in document)
    assert all(documents)
    kept = "".join("".join(document) for document in documents)
    letters = [c for c in text if c.isalnum()]
    assert [c for c in kept if c.isalnum()] == letters


@given(st.binary(), st.sampled_from(["lines", "split"]))
def test_any_bytes_give_text_that_can_be_written(data: bytes, sentences: str) -> None:
    config = CorpusConfig(sentences=sentences)
    for parse in (text_documents, json_documents):
        for document in parse(config, text_unit(data))[0]:
            "".join(document).encode()


# Units


def test_units_are_about_a_mebibyte_of_many_files_or_of_one(tmp_path: Path) -> None:
    for n in range(300):
        write(tmp_path / f"{n:03}.txt", f"File {n}. " * 2000)
    units = list(open_source(CorpusConfig(source=f"text:{tmp_path}/*.txt")).units())
    sizes = [sum(len(piece.data) for piece in unit.pieces) for unit in units]
    assert all(2**20 <= size < 2**20 + 40_000 for size in sizes[:-1])
    write(tmp_path / "000.txt", "A paragraph of a long book.\n\n" * 200_000)
    units = list(open_source(CorpusConfig(source=f"text:{tmp_path}/000.txt")).units())
    assert all(len(unit.pieces[0].data) <= 2**20 for unit in units)
    with worker_pool(1) as pool:
        assert pool.submit(list, units).result() == units


def test_source_halves_go_to_another_process(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "One. Two.")
    write(tmp_path / "a.jsonl", '{"text": "One. Two."}')
    with worker_pool(1) as pool:
        for kind, name in (("text", "a.txt"), ("jsonl", "a.jsonl")):
            source = open_source(CorpusConfig(source=f"{kind}:{tmp_path / name}"))
            parsed = pool.submit(source.documents, next(source.units())).result()
            assert parsed[0] == [["One.", "Two."]]


@given(
    st.lists(st.sampled_from(["a", "é", "한", " ", "\n", "\n\n", "\r\n", "😀"])), st.integers(8, 16)
)
def test_cuts_lose_nothing_and_break_no_character(parts: list[str], size: int) -> None:
    data = "".join(parts).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus_module, "UNIT_BYTES", size)
        pieces = list(cut_text("file", io.BytesIO(data)))
        lines = list(cut_json("file", io.BytesIO(data)))
    assert b"".join(piece.data for piece in pieces) == data
    assert b"".join(piece.data for piece in lines) == data
    for piece in pieces:
        piece.data.decode()
        assert len(piece.data) <= size
    for piece in pieces + lines:
        assert data[piece.offset :].startswith(piece.data)
        assert piece.line == 1 + data[: piece.offset].count(b"\n")
    assert all(piece.data.endswith(b"\n") for piece in lines[:-1])


@given(st.lists(st.lists(st.sampled_from(["One.", "Twenty two."]), min_size=1, max_size=3)))
def test_cuts_fall_between_documents(documents: list[list[str]]) -> None:
    data = "\n\n".join("\n".join(document) for document in documents).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus_module, "UNIT_BYTES", 40)  # longer than any of the documents
        units = list(pack((piece, 0) for piece in cut_text("file", io.BytesIO(data))))
    found = [text_documents(CorpusConfig(sentences="lines"), unit)[0] for unit in units]
    assert [document for some in found for document in some] == documents


def test_lines_too_long_to_hold_are_cut_or_skipped_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus_module, "UNIT_BYTES", 1000)
    monkeypatch.setattr(corpus_module, "MAX_JSON_LINE", 5000)
    long = " ".join(["word"] * 2000)
    path = write(tmp_path / "a.txt", f"One.\n\n{long}\n\nTwo.\n")
    documents, counts = read(f"text:{path}", sentences="lines")
    assert documents[0] == ["One."]
    assert documents[-1] == ["Two."]
    assert [w for document in documents[1:-1] for s in document for w in s.split()] == long.split()
    assert counts == {"long_lines": 1}
    good = json.dumps({"text": "Good."})
    path = write(tmp_path / "a.jsonl", "\n".join([good, json.dumps({"text": long}), good, "{"]))
    documents, counts = read(f"jsonl:{path}")
    assert documents == [["Good."], ["Good."]]
    assert counts == {"long_lines": 1, "bad_json": 1}
    with pytest.raises(UserError, match=r"a\.jsonl:4: "):
        read(f"jsonl:{path}", strict=True)
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    with pytest.raises(UserError, match=rf"a\.jsonl: byte {path.stat().st_size - 1} "):
        read(f"jsonl:{path}", strict=True)


@pytest.mark.slow
def test_a_line_of_100_megabytes_takes_little_memory(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"No end in sight " * (100 * 2**20 // 16))
    reading = read_apart(f"text:{path}", "split")
    assert reading.words == 4 * 100 * 2**20 // 16
    assert reading.kibibytes < 60 * 1024


# Bad input


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("wiki:en", "text:GLOB.*jsonl:GLOB.*parquet:GLOB.*tfds:NAME.*docstrings:"),
        ("books/*.txt", "no known kind"),
        ("text:", "text:GLOB"),
        ("docstrings:numpy", "docstrings:"),
        ("text:{folder}/none.txt", "none.txt: no such file"),
        ("text:{folder}/false.gz + json:a", "source 'json:a' is of no known kind"),
        ("text:{folder}/false.gz + tfds:", "source 'tfds:': write it as tfds:NAME"),
        ("text:{folder}/false.gz + jsonl:{folder}/none", "none: no such file"),
        ("jsonl:{folder}/*.jsonl", "no file matches"),
        ("text:{folder}", r"is a directory: name its files, such as '.*/\*\.txt'"),
        ("parquet:{folder}", r"is a directory: name its files, such as '.*/\*\.parquet'"),
        ("text:{folder}/*", r"a\.jsonl\.xz is jsonl by its name, not text: write jsonl:.*/\*$"),
        ("jsonl:{folder}/b.parquet", "b.parquet is parquet by its name, not jsonl: write parquet:"),
        ("text:{folder}/false.gz", r"false.gz: not a \.gz file"),
        ("text:{folder}/cut.gz", r"cut.gz: the \.gz file is cut short"),
        ("text:{folder}/damaged.gz", r"damaged.gz: not a \.gz file, or a damaged one"),
        ("text:{folder}/*.gz", "cut.gz"),
    ],
)
def test_bad_sources_are_one_line(tmp_path: Path, source: str, message: str) -> None:
    packed = gzip.compress(bytes(range(256)) * 100)
    write(tmp_path / "false.gz", "plain text")
    write(tmp_path / "a.jsonl.xz", "")
    write(tmp_path / "b.parquet", "")
    write(tmp_path / "cut.gz", packed[:-20])
    write(tmp_path / "damaged.gz", packed[:20] + b"\xff" * 20 + packed[40:])
    with pytest.raises(UserError, match=message) as caught:
        read(source.format(folder=tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("language", ["korean", "English", "en_GB", ""])
def test_a_language_that_is_no_code_is_not_split_as_english(language: str) -> None:
    with pytest.raises(UserError, match="give its code, such as en, ko"):
        open_source(CorpusConfig(language=language))


def test_a_file_that_goes_away_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "One.")
    source = open_source(CorpusConfig(source=f"text:{path}"))
    path.unlink()
    with pytest.raises(UserError, match=r"a\.txt: cannot be read: No such file"):
        list(source.units())
