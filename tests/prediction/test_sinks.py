"""Tables for people, JSON lines, and arrays that are whole at any time."""

import json
from typing import Any
from unicodedata import combining, east_asian_width

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.prediction.sinks import JsonLines, Vectors, table


def test_columns_stand_below_each_other():
    rows = [("name", "text"), ("東京", "a"), ("rivers", "bb")]
    assert table(rows, 80) == ["name    text", "東京    a", "rivers  bb"]


def test_the_last_column_is_cut_to_the_width():
    assert table([("a", "one two three")], 10) == ["a  one tw…"]
    assert table([("a", "東京東京")], 9) == ["a  東京…"]


def columns(line: str) -> int:
    """Of a terminal: two for a wide letter, none for an accent that stands on the one before."""
    wide = sum(east_asian_width(letter) in "WF" for letter in line)
    return len(line) + wide - sum(combining(letter) > 0 for letter in line)


@given(st.lists(st.tuples(st.text(), st.text(), st.text()), min_size=1), st.integers(1, 200))
def test_what_a_terminal_would_obey_is_not_printed(rows, width):
    lines = table(rows, width)
    assert len(lines) == len(rows)
    assert all(line.isprintable() for line in lines)
    assert all(columns(line) <= width for line in lines)


def test_vectors_are_rounded_and_lone_surrogates_replaced(tmp_path):
    prediction = {"text": "a\ud800", "vector": np.array([0.1234567, -2], np.float32)}
    with JsonLines(tmp_path / "a.jsonl") as sink:
        sink.write([prediction])
    found = json.loads((tmp_path / "a.jsonl").read_text())
    assert found == {"text": "a?", "vector": [0.123457, -2.0]}


def predicted(vectors: np.ndarray) -> list[dict[str, Any]]:
    return [{"vector": vector} for vector in vectors]


def test_an_array_is_whole_after_each_chunk(tmp_path):
    vectors = np.random.default_rng(0).normal(size=(2300, 5)).astype(np.float32)
    with Vectors(tmp_path / "v.npy") as sink:
        for end in (9, 10, 99, 1000, 2300):
            written = 0 if end == 9 else len(np.load(tmp_path / "v.npy"))
            sink.write(predicted(vectors[written:end]))
            np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), vectors[:end])
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy", mmap_mode="r"), vectors)


def test_arrays_of_an_earlier_command_are_taken_away(tmp_path):
    with Vectors(tmp_path / "v.npy") as sink:
        sink.write([{"vectors": np.zeros((2, 3))}])
    with Vectors(tmp_path / "v.npy"):
        pass
    assert not list(tmp_path.iterdir())


def test_vectors_of_pieces_have_offsets(tmp_path):
    texts = [np.full((length, 3), length, np.float32) for length in (2, 5, 3, 4)]
    with Vectors(tmp_path / "p.npy") as sink:
        for chunk in (texts[:3], texts[3:]):
            sink.write([{"tokens": [], "vectors": vectors} for vectors in chunk])
    np.testing.assert_array_equal(np.load(tmp_path / "p.npy"), np.concatenate(texts))
    np.testing.assert_array_equal(np.load(tmp_path / "p.offsets.npy"), [0, 2, 7, 10, 14])
