"""Rows from files as people have them."""

import csv
import gzip
import json

import pyarrow as pa
import pytest
from compressing import COMPRESS
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet as pq

from bert_jax.errors import UserError
from bert_jax.tasks.columns import Columns, read_sentences
from bert_jax.tasks.tables import field, read_examples, read_rows, text_field


def rows(path, header=()):
    return [row for _, row in read_rows(path, header)]


def test_tsv_is_not_quoted_and_names_its_places(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_bytes('\ufefftext\tlabel\r\nhe said "no\t1\r\n\r\nyes\t0'.encode())
    assert list(read_rows(path)) == [
        (f"{path}:2", {"text": 'he said "no', "label": "1"}),
        (f"{path}:4", {"text": "yes", "label": "0"}),
    ]


def test_a_file_without_a_header_gets_one(tmp_path):
    (tmp_path / "a.tsv").write_text("gj04\t1\t\tFred.\n")
    header = ("source", "label", "mark", "sentence")
    assert rows(tmp_path / "a.tsv", header)[0]["sentence"] == "Fred."


def test_a_header_in_the_file_goes_before_the_one_given(tmp_path):
    (tmp_path / "test.tsv").write_text("index\tsentence\n0\tFred.\n")
    header = ("source", "label", "mark", "sentence")
    assert rows(tmp_path / "test.tsv", header) == [{"index": "0", "sentence": "Fred."}]


def test_an_empty_name_in_the_header_is_no_name(tmp_path):
    (tmp_path / "a.tsv").write_text("\tx\n")
    assert rows(tmp_path / "a.tsv", ("", "text")) == [{"": "", "text": "x"}]
    (tmp_path / "a.csv").write_text("text,label,,\nx,1,,\n")
    assert rows(tmp_path / "a.csv") == [{"text": "x", "label": "1", "": ""}]


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.tsv", "x\ty\n1\t2\n3\n4\t5\n"), ("a.jsonl", '{"x": 1}\n{\n[2]\n{"x": 4}\n')],
)
def test_broken_rows_are_left_out_and_counted(tmp_path, capsys, name, content):
    (tmp_path / name).write_text(content)
    found = read_examples(tmp_path / name, (), lambda _, row: int(row["x"]), skip=True)
    assert found == [1, 4]
    left_out = content.count("\n") - 2 - name.endswith("tsv")
    told = f"{left_out} of {left_out + 2} rows left out; the first: {tmp_path / name}:"
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "numbers", "told"),
    [
        # Not closed: up to the end of the file, up to the next quote.
        ('x,y\n1,a\n"2,b\n3,c\n4,d\n', [1, 3, 4], "1 of 4 rows left out; the first: {}:3: "),
        ('x,y\n1,a\n"2,b\n3,c\n4,"d"\n', [1, 3, 4], "1 of 4 rows left out; the first: {}:3: "),
        # Closed too early, in the one line and in a row of several.
        ('x,y\n"1" b,a\n2,b\n', [2], "1 of 2 rows left out; the first: {}:2: "),
        ('x,y\n1,"a\nb" c\n2,b\n', [2], "2 of 3 rows left out; the first: {}:2: "),
    ],
)
def test_a_quote_that_is_amiss_costs_its_own_row_alone(tmp_path, capsys, content, numbers, told):
    path = tmp_path / "a.csv"
    path.write_text(content)
    assert read_examples(path, (), lambda _, row: int(row["x"]), skip=True) == numbers
    assert told.format(path) in capsys.readouterr().err
    with pytest.raises(UserError, match=r"a\.csv:\d: not CSV"):
        rows(path)


def test_a_row_of_several_lines_is_placed_by_its_first(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('x,y\n1,"a\n\nb"\n\n2,c\n')
    assert list(read_rows(path)) == [
        (f"{path}:2", {"x": "1", "y": "a\n\nb"}),
        (f"{path}:6", {"x": "2", "y": "c"}),
    ]


@given(
    st.lists(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=2, max_size=2))
)
def test_csv_reads_what_csv_writes(tmp_path_factory, values):
    values = [[cell.replace("\r", "").replace("\0", "") for cell in row] for row in values]
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["one", "two"], *values])
    assert rows(path) == [{"one": one, "two": two} for one, two in values]


@pytest.mark.parametrize("ending", COMPRESS)
def test_jsonl_keeps_types_and_may_be_compressed(tmp_path, ending):
    line = json.dumps({"text": "a\nb\u00e9", "label": [0.5, 1]}, ensure_ascii=False) + "\n\n"
    (tmp_path / f"a.jsonl{ending}").write_bytes(COMPRESS[ending](line.encode()))
    assert rows(tmp_path / f"a.jsonl{ending}") == [{"text": "a\nb\u00e9", "label": [0.5, 1]}]


def test_a_long_document_is_read_from_every_kind_of_file(tmp_path):
    text = "river " * 50_000  # more than the 131,072 characters that csv takes by itself
    (tmp_path / "a.tsv").write_text(f"text\tlabel\n{text}\t1\n")
    (tmp_path / "a.csv").write_text(f'text,label\n"{text}",1\n')
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": text, "label": "1"}))
    pq.write_table(pa.table({"text": [text], "label": ["1"]}), tmp_path / "a.parquet")
    for name in ("a.tsv", "a.csv", "a.jsonl", "a.parquet"):
        assert rows(tmp_path / name) == [{"text": text, "label": "1"}], name


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        (
            "a.txt",
            b"",
            r"a\.txt: must end in \.tsv, .*\.json \(and \.gz, .* if compressed\), or in \.parquet",
        ),
        ("a.parquet", b"PAR1", r"a\.parquet: not a Parquet file, or a damaged one"),
        ("a.tsv", b"x\ty\n1\n", r"a\.tsv:2: 1 columns, and the header has 2: x, y"),
        ("a.tsv", b"x\t\tx\n", r"a\.tsv:1: the header names a column twice"),
        ("a.tsv", b"x\n\xff\n", r"a\.tsv:2: not UTF-8 .*; save the file as UTF-8"),
        ("a.tsv", b"\xef\xbb\xbf" + b"x\n" * 30_000 + b"x\xff\n", r"a\.tsv:30001: not UTF-8"),
        ("a.csv", b"x\r\n" * 30_000 + b'"\r\n\xff"', r"a\.csv:30002: not UTF-8"),
        ("a.csv", b'x\n"open', r"a\.csv:2: .*"),
        ("a.jsonl", b"{}\n[1]", r"a\.jsonl:2: a JSON object"),
        ("a.jsonl", b"{", r"a\.jsonl:1: not JSON"),
        ("a.jsonl", b"[" * 100_000, r"a\.jsonl:1: not JSON"),
        ("a.jsonl", b'{"x": "\\ud83d"}', r"a\.jsonl:1: not JSON \(.*surrogates not allowed"),
        ("a.json", b"[{}, 3]", r"a\.json\[1\]: a JSON object"),
        ("a.json", b"{}", r"a\.json: a list of JSON objects"),
        ("a.json", b"[", r"a\.json: not JSON"),
        ("a.json", b"[" * 100_000, r"a\.json: not JSON"),
        ("a.json", b"[\xff]", r"a\.json: not UTF-8 .*; save the file as UTF-8"),
        ("a.jsonl.gz", b"no gzip", r"a\.jsonl\.gz: .*gzip"),
        ("a.jsonl.gz", gzip.compress(b"{}" * 9999, mtime=0)[:-9], r"a\.jsonl\.gz: "),
    ],
)
def test_what_cannot_be_read_is_told_with_its_place(tmp_path, name, content, told):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=told):
        rows(tmp_path / name)


def test_a_list_of_objects_is_read_with_the_places(tmp_path):
    (tmp_path / "a.json").write_text('[{"text": "a"},\n {"text": "b"}]')
    assert [row for _, row in read_rows(tmp_path / "a.json")] == [{"text": "a"}, {"text": "b"}]
    assert next(read_rows(tmp_path / "a.json"))[0] == f"{tmp_path}/a.json[0]"


def test_an_ending_may_be_in_capitals(tmp_path):
    with gzip.open(tmp_path / "A.TSV.GZ", "wt") as file:
        file.write("text\ta river\n")
    (tmp_path / "A.JSONL").write_text('{"tokens": ["a"], "tags": ["O"]}')
    assert rows(tmp_path / "A.TSV.GZ") == []
    (sentence,) = read_sentences(tmp_path / "A.JSONL", Columns(), labelled=True)
    assert sentence.tokens == ("a",)


def test_no_such_file(tmp_path):
    with pytest.raises(UserError, match="No such file"):
        rows(tmp_path / "a.tsv")


def test_a_missing_column_and_an_empty_text_are_told():
    with pytest.raises(UserError, match="here: no column 'label'; there are text, score"):
        field({"text": "a", "score": 1}, "label", "here")
    for empty in ("", "  ", None, 3):
        with pytest.raises(UserError, match=r"here: column 'text' holds .* a text is expected"):
            text_field({"text": empty}, "text", "here")


@pytest.mark.parametrize(
    ("path", "header", "count"),
    [
        ("glue/SST-2/dev.tsv", (), 872),
        ("glue/CoLA/train.tsv", ("source", "label", "mark", "sentence"), 8551),
        ("glue/RTE/train.tsv", (), 2490),
        ("glue/STS-B/dev.tsv", (), 1500),
        ("korean/nsmc-20k.tsv", (), 20_000),
        ("korean/klue-nli.json", (), 3000),
    ],
)
def test_real_files(test_data, path, header, count):
    assert len(rows(test_data / path, header)) == count
