"""Parquet as people have it: of pandas, of the Hugging Face hub, of programs that say little."""

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fuzzing import INPUTS, damaged, fuzz, hostile_text, refused
from parquet_files import hub_file, write
from pyarrow import parquet as pq
from small_corpus import read, read_apart

from bert_jax.config import CorpusConfig
from bert_jax.data.corpus import open_source
from bert_jax.data.parquet import parquet_rows
from bert_jax.errors import UserError

# Text to pretrain on


def test_a_row_is_a_document_as_a_line_of_json_is(tmp_path: Path) -> None:
    texts = [
        "One. Two.\nThree",
        " \n",
        "셋이다. 넷이다.",
        "A\x00 \ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"),
    ]
    columns = {"id": list(range(200)), "body": texts * 50}
    write(tmp_path / "b.parquet", columns, row_group_size=70)
    lines = "".join(json.dumps({"body": text}) + "\n" for text in texts * 50)
    (tmp_path / "b.jsonl").write_text(lines)
    for sentences in ("split", "lines"):
        settings = {"text_field": "body", "sentences": sentences}
        found = read(f"parquet:{tmp_path}/*.parquet", **settings)
        assert found == read(f"jsonl:{tmp_path}/b.jsonl", **settings)
        assert len(found[0]) == 150


def test_files_come_sorted_and_no_row_is_lost(tmp_path: Path) -> None:
    numbers = [f"Number {number}." for number in range(1000)]
    write(tmp_path / "b/1.parquet", {"text": numbers[130:]}, row_group_size=99)
    write(tmp_path / "a/2.parquet", {"text": numbers[:130]})
    write(tmp_path / "a/3.parquet", {"text": pa.array([], pa.string())})
    documents, counts = read(f"parquet:{tmp_path}/**/*.parquet")
    assert documents == [[number] for number in numbers]
    assert not counts


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), "categories"]
)
@pytest.mark.parametrize("compression", ["snappy", "zstd", "gzip", "none"])
def test_text_of_every_type_is_text(tmp_path: Path, kind: Any, compression: str) -> None:
    texts = pa.array(["Один.", None, "Two.", "Two."])
    column = texts.dictionary_encode() if kind == "categories" else texts.cast(kind)
    path = write(tmp_path / "a.parquet", {"text": column}, compression=compression)
    documents, counts = read(f"parquet:{path}")
    assert documents == [["Один."], ["Two."], ["Two."]]
    assert counts == {"empty_documents": 1}


def test_bytes_that_are_no_text_are_counted_or_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"text": pa.array([b"Good.", b"Caf\xe9."])})
    assert read(f"parquet:{path}") == ([["Good."], ["Caf�."]], {"invalid_utf8": 1})
    with pytest.raises(UserError, match=r"a\.parquet\[1\]: byte 3 is not valid UTF-8"):
        read(f"parquet:{path}", strict=True)


def test_a_file_without_the_column_is_named_before_any_work(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"text": ["One."], "title": ["A"]})
    write(tmp_path / "b.parquet", {"text": [1], "title": ["B"], "body": ["C"]})
    message = r"b\.parquet: no text in a column 'text'; there is text in 'title', 'body'"
    with pytest.raises(UserError, match=message):
        open_source(CorpusConfig(source=f"parquet:{tmp_path}/*"))
    with pytest.raises(UserError, match=r"a\.parquet: no text in a column 'body'"):
        open_source(CorpusConfig(source=f"parquet:{tmp_path}/*", text_field="body"))


@pytest.mark.slow
def test_memory_is_that_of_some_rows_whatever_a_row_group_holds(tmp_path: Path) -> None:
    draw = random.Random(0)
    texts = [draw.randbytes(2000).hex() for _ in range(50_000)]  # 200 MB, and no two alike
    path = write(tmp_path / "a.parquet", {"text": texts, "n": texts}, row_group_size=len(texts))
    reading = read_apart(f"parquet:{path}", "lines")
    assert reading.documents == 50_000
    assert reading.kibibytes < 64 * 1024


# Rows of examples


def test_rows_keep_types_and_name_their_places(tmp_path: Path) -> None:
    columns = {"text": ["a", "b"], "score": [1.5, None], "words": [["x", "y"], []], "n": [1, 2]}
    path = write(tmp_path / "a.parquet", columns)
    assert list(parquet_rows(path)) == [
        (f"{path}[0]", {"text": "a", "score": 1.5, "words": ["x", "y"], "n": 1}),
        (f"{path}[1]", {"text": "b", "score": None, "words": [], "n": 2}),
    ]


def test_classes_of_the_hub_have_names(tmp_path: Path) -> None:
    names = {"names": ["neg", "pos"], "_type": "ClassLabel"}
    features = {
        "text": {"dtype": "string", "_type": "Value"},
        "label": names,
        "tags": {"feature": names, "_type": "Sequence"},
        "more": {"feature": names, "_type": "List"},
        "old": [names],
        "texts": [{"dtype": "string", "_type": "Value"}],
        "odd": 3,
        "gone": names,
    }
    columns = {
        "text": ["a", "b", "c"],
        "label": [1, 0, -1],
        "tags": [[0, 1], [], None],
        "more": [[1], [1, 0], [-1]],
        "old": [[1], [], [0]],
        "texts": [["a"], ["b"], []],
        "odd": [1, 2, 3],
    }
    rows = [row for _, row in parquet_rows(hub_file(tmp_path / "a.parquet", columns, features))]
    assert [row["label"] for row in rows] == ["pos", "neg", None]
    assert [row["tags"] for row in rows] == [["neg", "pos"], [], None]
    assert [row["more"] for row in rows] == [["pos"], ["pos", "neg"], [None]]
    assert [row["old"] for row in rows] == [["pos"], [], ["neg"]]
    assert (rows[0]["texts"], rows[0]["odd"]) == (["a"], 1)
    assert "gone" not in rows[0]


@pytest.mark.parametrize(
    "note",
    ["{", "[]", "null", '{"info": 1}', '{"info": {"features": {"label": [1]}}}',
     '{"info": {"features": {"label": {"_type": "ClassLabel"}}}}', "[" * 10_000],
)  # fmt: skip
def test_a_note_that_says_nothing_of_classes_changes_nothing(tmp_path: Path, note: str) -> None:
    table = pa.table({"label": [1]}).replace_schema_metadata({"huggingface": note})
    pq.write_table(table, tmp_path / "a.parquet")
    assert [row for _, row in parquet_rows(tmp_path / "a.parquet")] == [{"label": 1}]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "not a Parquet file, or a damaged one"),
        (b"text,label\na,1\n", "not a Parquet file, or a damaged one"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_what_is_no_parquet_is_told_in_a_line(
    tmp_path: Path, data: bytes | None, told: str
) -> None:
    path = tmp_path / "a.parquet"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(UserError, match=rf"a\.parquet: {told}") as caught:
        list(parquet_rows(path))
    assert "\n" not in str(caught.value)


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    twice = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], ["text", "text"])
    pq.write_table(twice, tmp_path / "a.parquet")
    told = r"a\.parquet: two columns have the same name: text, text"
    with pytest.raises(UserError, match=told):
        list(parquet_rows(tmp_path / "a.parquet"))
    with pytest.raises(UserError, match=told):
        open_source(CorpusConfig(source=f"parquet:{tmp_path}/a.parquet"))


def test_a_text_that_is_not_utf8_is_told(tmp_path: Path) -> None:
    raw = pa.array([b"Caf\xe9 au lait"])
    text = pa.StringArray.from_buffers(len(raw), *raw.buffers()[1:])
    path = write(tmp_path / "a.parquet", {"text": text})
    with pytest.raises(UserError, match=r"a\.parquet: a text is not UTF-8"):
        list(parquet_rows(path))


def hostile_file(draw: random.Random, folder: Path) -> bool:
    """Whether a damaged file is read, as text and as rows."""
    count = draw.randrange(1, 200)
    texts = [hostile_text(draw).encode(errors="replace").decode() for _ in range(count)]
    columns = {"text": texts, "label": [draw.randrange(3) for _ in texts]}
    compression = draw.choice(("snappy", "zstd", "none"))
    path = write(folder / "a.parquet", columns, compression=compression)
    path.write_bytes(damaged(path.read_bytes(), draw))
    try:
        source = open_source(CorpusConfig(source=f"parquet:{path}", sentences="lines"))
        units = list(source.units())
        rows = list(parquet_rows(path))
    except UserError as error:
        return refused(error)
    assert sum(unit.progress for unit in units) <= source.total_bytes
    for unit in units:
        assert len(source.documents(unit)[0]) <= len(unit.pieces)
    assert all(row.keys() for _, row in rows)
    return True


@pytest.mark.parametrize("inputs", INPUTS)
def test_damaged_files_are_refused_in_a_line(inputs):
    fuzz(hostile_file, inputs)
