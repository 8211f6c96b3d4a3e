"""SQuAD's files and scores, the scores against the official rules written out here."""

import collections
import dataclasses
import gzip
import json
import math
import re
import string

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet as pq

from bert_jax.errors import UserError
from bert_jax.tasks.squad import (
    Answer,
    Question,
    best_null_threshold,
    normalized,
    question_scores,
    read_squad,
    scores,
)


def question(*truths, context="", **fields):
    answers = tuple(Answer(truth, 0) for truth in truths)
    return Question(where="a", text="Which?", context=context, answers=answers, **fields)


def squad_file(path, *, context="Blue is a colour.", text="Blue", start=0, **fields):
    entry = {"id": "q1", "question": "Which?", "answers": [{"text": text, "answer_start": start}]}
    kept = {name: value for name, value in (entry | fields).items() if value is not None}
    paragraph = {"context": context, "qas": [kept]}
    path.write_text(json.dumps({"version": "1.1", "data": [{"paragraphs": [paragraph]}]}))
    return path


def test_a_file_is_read(tmp_path):
    path = squad_file(tmp_path / "a.json", text="a colour", start=8)
    (read,), rejected = read_squad(path)
    assert (read.id, read.text, read.context) == ("q1", "Which?", "Blue is a colour.")
    assert (read.answers, rejected) == ((Answer("a colour", 8),), [])
    assert read.where == f"{path}: data[0].paragraphs[0].qas[0]"


def test_a_packed_file_is_read(tmp_path):
    plain, packed = squad_file(tmp_path / "a.json"), tmp_path / "a.json.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_squad(packed)[0][0].context == read_squad(plain)[0][0].context


ROW = {"question": "Which?", "context": "Blue is a colour."}
IN_LISTS = {"text": ["Blue", "a colour"], "answer_start": [0, 8]}
BOTH = (Answer("Blue", 0), Answer("a colour", 8))


def row_file(path, *rows):
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_a_file_of_a_question_a_row_is_read(tmp_path, name):
    none = {"text": [], "answer_start": []}
    rows = [
        ROW | {"id": "q1", "answers": IN_LISTS, "is_impossible": False},
        ROW | {"id": "q2", "answers": none, "is_impossible": False},
        ROW | {"id": None, "answers": IN_LISTS, "is_impossible": True},
    ]
    path = row_file(tmp_path / name, *rows)
    questions, rejected = read_squad(path)
    places = [f"{path}:{n}" if name == "a.jsonl" else f"{path}[{n - 1}]" for n in (1, 2, 3)]
    assert rejected == []
    assert [question.where for question in questions] == places
    assert [question.id for question in questions] == ["q1", "q2", places[2]]
    assert [question.answers for question in questions] == [BOTH, (), ()]
    assert {(question.text, question.context) for question in questions} == {tuple(ROW.values())}


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_rows_need_no_answers_where_none_are_asked_for(tmp_path, name):
    for row in (ROW, ROW | {"answers": None}):
        path = row_file(tmp_path / name, row)
        assert read_squad(path, labelled=False)[0][0].answers is None
        with pytest.raises(UserError, match="a list 'answers' is expected"):
            read_squad(path)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"answers": {"text": ["Blue"], "answer_start": [0, 8]}}, "1 answers, and 2 answer_start"),
        ({"answers": {"text": ["Blue"]}}, "a list 'answer_start'"),
        ({"answers": ["Blue"]}, "a text 'text'"),
        ({"answers": IN_LISTS, "context": 3}, "a text 'context'"),
        ({"answers": IN_LISTS, "question": None}, "a text 'question'"),
    ],
)
def test_rows_of_another_form_are_told_with_their_place(tmp_path, change, told):
    with pytest.raises(UserError, match=rf"a\.jsonl:1: {told}"):
        read_squad(row_file(tmp_path / "a.jsonl", ROW | change))


def test_real_questions_are_the_same_in_rows(test_data, tmp_path):
    questions, _ = read_squad(test_data / "squad/dev-subset-v1.1.json")
    rows = [
        {
            "id": question.id,
            "question": question.text,
            "context": question.context,
            "answers": {
                "text": [text for text, _ in question.answers or ()],
                "answer_start": [start for _, start in question.answers or ()],
            },
        }
        for question in questions
    ]
    read, rejected = read_squad(row_file(tmp_path / "a.parquet", *rows))
    assert rejected == []
    assert [dataclasses.replace(question, where="") for question in read] == [
        dataclasses.replace(question, where="") for question in questions
    ]


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_empty_answers_of_a_whole_file_are_hidden_ones(tmp_path, name):
    empty = {"answers": {"text": [], "answer_start": []}}
    path = row_file(tmp_path / name, *[ROW | empty] * 2)
    assert [question.answers for question in read_squad(path, labelled=False)[0]] == [None, None]
    assert [question.answers for question in read_squad(path)[0]] == [(), ()]
    known = {"answers": {"text": ["Blue"], "answer_start": [0]}}
    path = row_file(tmp_path / name, ROW | {"context": "Blue."} | known, ROW | empty)
    assert [len(q.answers or ()) for q in read_squad(path, labelled=False)[0]] == [1, 0]
    assert read_squad(path, labelled=False)[0][1].answers == ()
    path = squad_file(tmp_path / "a.json", is_impossible=True, plausible_answers=[])
    assert read_squad(path, labelled=False)[0][0].answers == ()


def test_questions_of_a_context_are_held_out_together(tmp_path):
    (read,), _ = read_squad(squad_file(tmp_path / "a.json"))
    assert read.group == read.context


def test_an_unanswerable_question_has_no_answers(tmp_path):
    path = squad_file(tmp_path / "a.json", is_impossible=True, plausible_answers=[])
    assert read_squad(path)[0][0].answers == ()


def test_answers_may_be_unknown_where_they_are_not_needed(tmp_path):
    path = squad_file(tmp_path / "a.json", answers=None)
    assert read_squad(path, labelled=False)[0][0].answers is None
    with pytest.raises(UserError, match=r"qas\[0\]: a list 'answers'"):
        read_squad(path)
    path = squad_file(tmp_path / "a.json")
    assert read_squad(path, labelled=False)[0][0].answers == (Answer("Blue", 0),)


@pytest.mark.parametrize(
    ("text", "start", "there"),
    [("Blue", 3, "e is"), ("Blue", 99, ""), ("blue", 0, "Blue"), ("", 2, "u"), (" ", 4, " ")],
)
def test_an_answer_that_does_not_stand_there_is_left_out_and_named(tmp_path, text, start, there):
    path = squad_file(tmp_path / "a.json", text=text, start=start)
    questions, rejected = read_squad(path)
    assert questions == []
    assert f"data[0].paragraphs[0].qas[0] (q1): the answer {text!r}" in rejected[0]
    assert f"character {start} of the context, where there is {there!r}" in rejected[0]
    assert len(read_squad(path, labelled=False)[0]) == 1


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"answers": "Blue"}, r"qas\[0\]: a list 'answers'"),
        ({"answers": ["Blue"]}, r"qas\[0\]: a text 'text'"),
        ({"id": 7}, r"qas\[0\]: a text 'id'"),
        ({"question": None}, r"qas\[0\]: a text 'question'"),
        ({"context": 3}, r"paragraphs\[0\]: a text 'context'"),
        (
            {"question": "\ud83d"},
            r"qas\[0\]: 'question' is no Unicode text .*surrogates not allowed",
        ),
        ({"answers": [{"text": "Blue"}]}, "'answer_start' is None"),
        ({"answers": [{"text": "Blue", "answer_start": -1}]}, "'answer_start' is -1"),
        ({"answers": [{"text": "Blue", "answer_start": True}]}, "'answer_start' is True"),
        ({"answers": [{"text": "Blue", "answer_start": 1.0}]}, "'answer_start' is 1.0"),
    ],
)
def test_another_form_is_told_with_its_place(tmp_path, change, told):
    with pytest.raises(UserError, match=told):
        read_squad(squad_file(tmp_path / "a.json", **change))


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[",
        "[]",
        "\xff",
        "[" * 100_000,
        '{"data": 3}',
        '{"data": [3]}',
        '{"data": [{"paragraphs": [{}]}]}',
        '{"data": [{"paragraphs": [{"context": "", "qas": [3]}]}]}',
    ],
)
def test_what_is_no_squad_file_is_told(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(UserError, match=r"a\.json") as error:
        read_squad(tmp_path / "a.json")
    assert ("not JSON" in str(error.value)) == (content == "" or content[-1] == "[")


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(UserError, match="No such file"):
        read_squad(tmp_path / "a.json")


def test_real_files(test_data):
    questions, rejected = read_squad(test_data / "squad/dev-subset-v1.1.json")
    assert (len(questions), rejected) == (4961, [])
    perfect = [(question.answers or [Answer("", 0)])[-1].text for question in questions]
    assert all(perfect)
    found = scores(questions, perfect)
    assert found["exact_match"] == 1
    assert found["f1"] == pytest.approx(np.mean([first_rules(true, [true])[1] for true in perfect]))
    assert len(read_squad(test_data / "squad/train-subset-v1.1.json")[0]) == 11877


KEYS = ["data", "paragraphs", "qas", "context", "question", "id", "answers", "text", "answer_start"]
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-2, 9), st.text(max_size=4)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner),
)


@given(st.lists(st.tuples(st.sampled_from(KEYS), JSON), max_size=4), st.booleans())
def test_whatever_stands_in_a_place_is_read_or_told(tmp_path_factory, changes, labelled):
    path = tmp_path_factory.getbasetemp() / "changed.json"
    answers = [{"text": "Blue", "answer_start": 0}]
    qas = [{"id": "q", "question": "?", "answers": answers}]
    paragraphs = [{"context": "Blue", "qas": qas}]
    places = [answers[0], qas[0], paragraphs[0], content := {"data": [{"paragraphs": paragraphs}]}]
    for key, value in changes:
        next((place for place in places if key in place), content)[key] = value
    path.write_text(json.dumps(content))
    questions, told = [], f"{path}"
    try:
        questions, _ = read_squad(path, labelled)
    except UserError as error:
        told = str(error)
    assert f"{path}" in told
    stand = [q.context[a.start :].startswith(a.text) for q in questions for a in q.answers or ()]
    assert all(stand) or not labelled


def plain(text):
    """normalize_answer of both official scripts."""
    kept = "".join(ch for ch in text.lower() if ch not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", kept).split())


def overlap(said, truth):
    """f1_score of evaluate-v1.1.py."""
    said_words, true_words = plain(said).split(), plain(truth).split()
    same = sum((collections.Counter(said_words) & collections.Counter(true_words)).values())
    if same == 0:
        return 0
    precision, recall = same / len(said_words), same / len(true_words)
    return 2 * precision * recall / (precision + recall)


def first_rules(said, truths):
    return [max(plain(said) == plain(t) for t in truths), max(overlap(said, t) for t in truths)]


def second_rules(said, truths):
    """get_raw_scores and compute_f1 of evaluate-v2.0.py."""

    def f1(truth):
        true_words, said_words = plain(truth).split(), plain(said).split()
        if len(true_words) == 0 or len(said_words) == 0:
            return int(true_words == said_words)
        return overlap(said, truth)

    golds = [truth for truth in truths if plain(truth)] or [""]
    return [max(plain(said) == plain(gold) for gold in golds), max(map(f1, golds))]


# An answer, what is true, and what the official rules make of it, worked out by hand.
HARD = [
    ("The Rhine!", ["rhine"], 1, 1),
    ("a Rhine", ["the Rhine"], 1, 1),
    ("theRhine", ["Rhine"], 0, 0),  # articles are words
    ("an an hour", ["hour"], 1, 1),
    ("the-a-an", ["x"], 0, 0),  # punctuation goes first: theaan is no article
    ("1,000", ["1000"], 1, 1),
    ("x-ray", ["x ray"], 0, 0),  # a hyphen goes without a space
    ("MÜLLER", ["Müller"], 1, 1),
    ("Strasse", ["Straße"], 0, 0),  # lower case folds no letters
    ("Rock —the— Roll", ["rock — — roll"], 1, 1),  # an article leaves a space behind
    ("Mu\u0308ller", ["Müller"], 0, 0),  # nothing is composed
    ("“Müller”", ["Müller"], 0, 0),  # quotes beyond ASCII are no punctuation
    ("1917–1918", ["1917-1918"], 0, 0),  # nor is the long dash
    ("Düsseldorf\u00a0 am\tRhein", ["düsseldorf am rhein"], 1, 1),
    ("İzmir", ["i\u0307zmir"], 1, 1),  # lower case of İ is two characters
    ("big big cat", ["big cat"], 0, 0.8),  # words count as often as they stand there
    ("cat big", ["big cat"], 0, 1),
    ("the big cat", ["cat", "a big dog"], 0, 2 / 3),  # the best of several answers
    ("dog", ["cat", "Dog."], 1, 1),
    ("", ["cat"], 0, 0),
]


@pytest.mark.parametrize(("said", "truths", "exact", "f1"), HARD)
def test_hard_cases_score_by_the_rules(said, truths, exact, f1):
    expected = pytest.approx([exact, f1])
    assert first_rules(said, truths) == expected
    assert question_scores([question(*truths)], [said])[0].tolist() == expected
    both = question_scores([question(*truths), question()], [said, ""])
    assert both.tolist() == [expected, [1, 1]]


@pytest.mark.parametrize(
    ("said", "truths", "first", "second"),
    [
        ("the", ["a"], (1, 0), (1, 1)),
        ("", ["the"], (1, 0), (1, 1)),
        ("x", ["the"], (0, 0), (0, 0)),
        ("the", ["an", "x"], (1, 0), (0, 0)),
        ("...", ["a", "!"], (1, 0), (1, 1)),
    ],
)
def test_what_normalising_leaves_nothing_of(said, truths, first, second):
    assert tuple(question_scores([question(*truths)], [said])[0]) == first
    rows = question_scores([question(*truths), question()], [said, "cat"])
    assert rows.tolist() == [list(second), [0, 0]]
    assert (first_rules(said, truths), second_rules(said, truths)) == (list(first), list(second))


TEXTS = st.one_of(st.text("ab the,.!–É ", max_size=20), st.text(max_size=10))


@given(st.lists(st.tuples(TEXTS, st.lists(TEXTS, min_size=1)), min_size=1), st.booleans())
def test_scores_are_the_official_ones(answered, second):
    questions = [question(*truths) for _, truths in answered] + [question()] * second
    said = [answer for answer, _ in answered] + [""] * second
    rule = second_rules if second else first_rules
    expected = [rule(answer, truths) for answer, truths in answered] + [[1, 1]] * second
    assert np.allclose(question_scores(questions, said), expected)
    assert all(normalized(answer) == plain(answer) for answer in said)


def test_answerable_and_unanswerable_questions_are_scored_apart_too():
    questions = [question("big cat"), question("dog"), question(), question(), question()]
    found = scores(questions, ["cat", "", "", "mouse", ""])
    assert found == pytest.approx(
        {
            "exact_match": 2 / 5,
            "f1": (2 / 3 + 2) / 5,
            "has_answer_exact_match": 0,
            "has_answer_f1": 1 / 3,
            "no_answer_exact_match": 2 / 3,
            "no_answer_f1": 2 / 3,
        }
    )
    assert set(scores(questions[:2], ["cat", ""])) == {"exact_match", "f1"}
    none = scores(questions[2:], ["", "mouse", ""])
    assert set(none) == {"exact_match", "f1", "no_answer_exact_match", "no_answer_f1"}


@given(
    st.lists(
        st.tuples(st.sampled_from([-1.0, 0.0, 0.25, 0.5, 1.0]), st.integers(-3, 3).map(float)),
        min_size=1,
    )
)
def test_no_other_null_threshold_is_better(pairs):
    gains, margins = np.array(pairs).T

    def total(threshold):
        return gains[margins <= threshold].sum()

    found = best_null_threshold(gains, margins)
    assert math.isfinite(found)
    assert total(found) == max(total(threshold) for threshold in [-math.inf, *margins])


def test_the_null_threshold_is_the_lowest_of_equally_good_ones():
    assert best_null_threshold(np.array([1.0, 0.0, 0.0]), np.array([-2.0, 1.0, 3.0])) == -2
    assert best_null_threshold(np.array([-1.0, -1.0]), np.array([5.0, 2.0])) < 2
    assert best_null_threshold(np.array([0.0]), np.array([3.0])) < 3
