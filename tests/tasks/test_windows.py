"""Windows and spans against run_squad.py's rules, written out one piece at a time."""

import itertools

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from peer_models import PIECES

from bert_jax.data.tokenization import load_tokenizer
from bert_jax.tasks.squad import read_squad
from bert_jax.tasks.windows import (
    best_spans,
    best_windows,
    covering_pieces,
    null_score,
    positions_in_window,
    window_features,
    window_spans,
)

CONTEXT = "The river Rhine, in the Alps, flows through six lands to the North Sea at Rotterdam."


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("\n".join(PIECES) + "\n")
    return load_tokenizer(path)


def words(text):
    """A piece a word: ids from 10 on, and their characters."""
    ends = list(itertools.accumulate(len(word) + 1 for word in text.split(" ")))
    offsets = [
        (end - 1 - len(word), end - 1) for word, end in zip(text.split(" "), ends, strict=True)
    ]
    return np.arange(10, 10 + len(offsets), dtype=np.int32), np.array(offsets)


def windows_of(tokenizer, context=CONTEXT, query=5, max_length=16, stride=3):
    ids, offsets = words(context)
    return window_features(np.arange(100, 100 + query), ids, offsets, tokenizer, max_length, stride)


def original_spans(length, room, stride):
    """run_squad.py, convert_examples_to_features: starts and lengths of the windows."""
    spans, start = [], 0
    while start < length:
        size = length - start
        if size > room:
            size = room
        spans.append((start, size))
        if start + size == length:
            break
        start += min(size, stride)
    return spans


def original_owner(spans, position):
    """run_squad.py, _check_is_max_context: the first of the best scores."""
    best_score, best = None, None
    for index, (start, size) in enumerate(spans):
        if position < start or position > start + size - 1:
            continue
        score = min(position - start, start + size - 1 - position) + 0.01 * size
        if best_score is None or score > best_score:
            best_score, best = score, index
    return best


@given(st.integers(1, 300), st.integers(1, 60), st.integers(1, 80))
@example(400, 300, 280)  # lengths that differ by so much that they outweigh a piece of context
def test_windows_are_those_of_the_original_and_each_piece_has_its_best(length, room, stride):
    spans = window_spans(length, room, stride)
    theirs = original_spans(length, room, stride)
    assert spans == [(start, start + size) for start, size in theirs]
    assert set().union(*(range(*span) for span in spans)) == set(range(length))
    owners = best_windows(spans, length)
    assert owners.tolist() == [original_owner(theirs, piece) for piece in range(length)]


def test_a_window_holds_the_question_and_a_part_of_the_context(tokenizer):
    (_, first), *_, (start, last) = windows_of(tokenizer)
    cls, sep = tokenizer.cls_id, tokenizer.sep_id
    assert first["input_ids"].tolist() == [cls, *range(100, 105), sep, *range(10, 18), sep]
    assert first["token_type_ids"].tolist() == [0] * 7 + [1] * 9
    assert first["attention_mask"].tolist() == [1] * 16
    assert last["input_ids"][7] == 10 + start
    assert len(last["input_ids"]) == 8 + len(CONTEXT.split()) - start
    starts, ends = last["token_offsets"][:, 7:-1]
    assert [CONTEXT[a:b] for a, b in zip(starts, ends, strict=True)] == CONTEXT.split()[start:]


def test_every_piece_may_begin_an_answer_in_exactly_one_window(tokenizer):
    owned = [
        first + position - 7
        for first, feature in windows_of(tokenizer)
        for position in np.flatnonzero(feature["token_owned"])
    ]
    assert sorted(owned) == list(range(len(CONTEXT.split())))


def test_a_context_without_pieces_has_one_window(tokenizer):
    none = np.zeros((0, 2), np.int64)
    ((_, feature),) = window_features(np.array([9]), none[:, 0], none, tokenizer, 16, 4)
    assert feature["input_ids"].tolist() == [tokenizer.cls_id, 9] + [tokenizer.sep_id] * 2
    outputs = {name: np.zeros(4, np.float32) for name in ("token_starts", "token_ends")}
    assert best_spans([feature], [outputs], "", 3, 5) == []


@given(st.data())
def test_an_answer_is_at_its_words_or_where_it_is_not_whole_at_cls(tokenizer, data):
    count = len(CONTEXT.split())
    first = data.draw(st.integers(0, count - 1))
    last = data.draw(st.integers(first, count - 1))
    _, offsets = words(CONTEXT)
    pieces = covering_pieces(offsets, offsets[first, 0], offsets[last, 1])
    assert pieces == (first, last)
    for begin, feature in windows_of(tokenizer):
        size = len(feature["input_ids"]) - 8
        start, end = positions_in_window(feature, begin, pieces)
        if begin <= first and last < begin + size:
            assert feature["input_ids"][[start, end]].tolist() == [10 + first, 10 + last]
        else:
            assert (start, end) == (0, 0)
    assert positions_in_window(windows_of(tokenizer)[0][1], 0, None) == (0, 0)


def test_characters_inside_words_find_their_words():
    _, offsets = words(CONTEXT)
    low = CONTEXT.index("iver")
    assert covering_pieces(offsets, low, low + 7) == (1, 2)
    assert covering_pieces(offsets, 3, 4) is None  # a space


def original_spans_of_answers(windows, outputs, context, longest, n_best):
    """run_squad.py, write_predictions: spans one at a time, by falling scores, each text once."""
    found = []
    for (_, feature), of_window in zip(windows, outputs, strict=True):
        starts, ends = of_window["token_starts"], of_window["token_ends"]
        best = [sorted(range(len(x)), key=lambda i, x=x: -x[i])[:n_best] for x in (starts, ends)]
        for start, end in itertools.product(*best):
            in_context = start >= 7 and end < len(starts) - 1
            if not in_context or end < start or end - start + 1 > longest:
                continue
            if feature["token_owned"][start]:
                text = context[
                    feature["token_offsets"][0, start] : feature["token_offsets"][1, end]
                ]
                found.append((float(starts[start]) + float(ends[end]), text))
    found.sort(key=lambda pair: pair[0], reverse=True)
    best_of_text = {}
    for score, text in found:
        best_of_text.setdefault(text, score)
    return list(best_of_text.items())[:n_best]


@pytest.mark.parametrize("seed", range(30))
def test_the_best_spans_are_those_of_the_original(tokenizer, seed):
    rng = np.random.default_rng(seed)
    context = " ".join(rng.choice(["the", "Rhine", "sea,"], 24))
    windows = windows_of(tokenizer, context)
    outputs = [
        {
            # Halves, so that scores are often equal.
            name: np.round(2 * rng.normal(size=len(f["input_ids"]))).astype(np.float32) / 2
            for name in ("token_starts", "token_ends")
        }
        for _, f in windows
    ]
    spans = best_spans([f for _, f in windows], outputs, context, longest=4, n_best=6)
    expected = original_spans_of_answers(windows, outputs, context, longest=4, n_best=6)
    assert [(context[s.start : s.end], s.score) for s in spans] == expected
    assert null_score(outputs) == min(o["token_starts"][0] + o["token_ends"][0] for o in outputs)


# As pieces are of a tokenizer that strips accents: the vowel signs of Hindi and Thai too.
@pytest.mark.parametrize("last", ["cafe\u0301", "\u0939\u0948", "\u0e19\u0e35\u0e49"])
def test_a_span_ends_after_the_accents_of_its_last_letter(tokenizer, last):
    context = f"the {last}, \u0301"
    letters = len(last.rstrip("\u0301\u0948\u0e35\u0e49"))
    offsets = np.array([(0, 3), (4, 4 + letters)])
    ((_, feature),) = window_features(np.array([9]), np.array([7, 8]), offsets, tokenizer, 16, 4)
    outputs = {
        name: np.array([0, 0, 0, 0, 9, 0], np.float32) for name in ("token_starts", "token_ends")
    }
    (span, *_) = best_spans([feature], [outputs], context, 3, 5)
    assert context[span.start : span.end] == last


def test_a_piece_of_no_characters_is_no_answer(tokenizer):
    offsets = np.array([(0, 3), (4, 4), (4, 6)])  # as where SentencePiece has the space alone
    ((_, feature),) = window_features(np.array([9]), np.arange(7, 10), offsets, tokenizer, 16, 4)
    logits = np.array([0, 0, 0, 0, 9, 0, 0], np.float32)
    outputs = {"token_starts": logits, "token_ends": logits}
    spans = best_spans([feature], [outputs], "the 단어", 3, 9)
    assert [(span.start, span.end) for span in spans] == [(4, 6), (0, 4), (0, 3), (0, 6)]


@pytest.mark.parametrize("case", ["uncased", "cased"])
def test_real_answers_are_found_again_exactly(case, test_data):
    """All but those that begin or end inside a piece, which no span of pieces can be."""
    tokenizer = load_tokenizer(test_data / f"vocab/bert-base-{case}-vocab.txt")
    questions, _ = read_squad(test_data / "squad/dev-subset-v1.1.json")
    contexts = list(dict.fromkeys(question.context for question in questions))
    encoded = dict(zip(contexts, tokenizer.encode_with_offsets(contexts), strict=True))
    inside = 0
    for question in questions:
        ids, offsets = encoded[question.context]
        text, start = (question.answers or [])[0]
        pieces = covering_pieces(offsets, start, start + len(text))
        assert pieces
        edges = offsets[pieces[0], 0], offsets[pieces[1], 1]
        if edges != (start, start + len(text)):
            inside += 1
            continue
        windows = window_features(ids[:20], ids, offsets, tokenizer, 128, 64)
        found = [(f, positions_in_window(f, first, pieces)) for first, f in windows]
        spans = [(f["token_offsets"][0, s], f["token_offsets"][1, e]) for f, (s, e) in found if s]
        assert spans or pieces[1] - pieces[0] > 40
        assert set(spans) <= {(start, start + len(text))}
    assert inside < 0.01 * len(questions)
