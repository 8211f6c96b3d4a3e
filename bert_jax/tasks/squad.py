"""SQuAD's files and its scores (Rajpurkar et al., 2016 and 2018).

The rules of the scores are those of the official scripts, evaluate-v1.1.py and evaluate-v2.0.py:
answers are compared in lower case, without punctuation and articles, with single spaces.
"""

import dataclasses
import json
import re
import string
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_jax.data.compressed import kind
from bert_jax.errors import UserError
from bert_jax.tasks.tables import opened, read_rows
from bert_jax.tasks.task import Example

_MAX_LENGTH = 1 << 30  # of a file, in characters
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


class Answer(NamedTuple):
    """A stretch of the context: `context[start : start + len(text)] == text`."""

    text: str
    start: int


@dataclass(frozen=True, kw_only=True)
class Question(Example):
    """A question, `text`, about a context.

    id: what a file calls it.
    answers: the true ones; none where the context has none, and None where they are not known.
    """

    context: str
    id: str = ""
    answers: tuple[Answer, ...] | None = None

    @property
    def group(self) -> str:
        """The context, which questions about it share."""
        return self.context


def read_squad(path: Path, labelled: bool = True) -> tuple[list[Question], list[str]]:
    """The questions of a SQuAD file, 1.1 or 2.0.

    Args:
      path: the file; a .jsonl or .parquet has a question a row, as the Hugging Face hub has them:
        `answers` has a list "text" and a list "answer_start", both empty where there is none.
      labelled: whether each question must have its answers, where the file says that they stand.
        Else, in a file without a single one, empty lists hide them, as in test sets of the hub.

    Returns:
      The questions, and what is wrong with those that are left out, a line each: an answer that
      does not stand where the file says.

    Raises:
      UserError: there is no such file, or it is not in SQuAD's form; the place is named.
    """
    questions: list[Question] = []
    rejected: list[str] = []
    hidden = not labelled
    read = _rows if kind(path) in (".jsonl", ".parquet") else _articles
    for where, context, fields in read(path):
        question = _question(fields, context, where, labelled)
        hidden = hidden and not question.answers and fields.get("is_impossible") is not True
        wrong = _mismatch(question) if labelled else ""
        if wrong:
            rejected.append(wrong)
        else:
            questions.append(question)
    if hidden:
        questions = [dataclasses.replace(question, answers=None) for question in questions]
    return questions, rejected


def _articles(path: Path) -> Iterator[tuple[str, str, Any]]:
    """The place, the context and the fields of each question of a file in SQuAD's own form."""
    for i, article in enumerate(_items(_load(path), "data", f"{path}")):
        for j, paragraph in enumerate(_items(article, "paragraphs", f"{path}: data[{i}]")):
            where = f"{path}: data[{i}].paragraphs[{j}]"
            context = _text(paragraph, "context", where)
            for k, fields in enumerate(_items(paragraph, "qas", where)):
                yield f"{where}.qas[{k}]", context, fields


def _rows(path: Path) -> Iterator[tuple[str, str, Any]]:
    """The same of a file of a question a row; one without an id is called by its place."""
    for where, row in read_rows(path):
        fields = {"id": where} | {key: value for key, value in row.items() if value is not None}
        answers = fields.get("answers")
        if isinstance(answers, dict):
            texts, starts = (_items(answers, name, where) for name in ("text", "answer_start"))
            if len(texts) != len(starts):
                raise UserError(f"{where}: {len(texts)} answers, and {len(starts)} answer_start")
            pairs = zip(texts, starts, strict=True)
            fields["answers"] = [{"text": text, "answer_start": start} for text, start in pairs]
        yield where, _text(row, "context", where), fields


def _load(path: Path) -> Any:
    with opened(path) as file:
        text = file.read(_MAX_LENGTH + 1)
    if len(text) > _MAX_LENGTH:
        raise UserError(f"{path}: over {_MAX_LENGTH:,} characters")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({error})") from error


def _question(fields: Any, context: str, where: str, labelled: bool) -> Question:
    return Question(
        where=where,
        text=_text(fields, "question", where),
        context=context,
        id=_text(fields, "id", where),
        answers=_answers(fields, where, labelled),
    )


def _answers(fields: Any, where: str, labelled: bool) -> tuple[Answer, ...] | None:
    # What 2.0 gives to unanswerable questions, plausible answers, has a name of its own.
    if fields.get("is_impossible") is True:
        return ()
    if not labelled and "answers" not in fields:
        return None
    return tuple(
        Answer(_text(answer, "text", where), _start(answer, where))
        for answer in _items(fields, "answers", where)
    )


def _mismatch(question: Question) -> str:
    """What is wrong with the first answer that does not stand in its place; "" where all do."""
    for text, start in question.answers or ():
        if not text.strip() or not question.context.startswith(text, start):
            there = question.context[start : start + max(len(text), 1)]
            return (
                f"{question.where} ({question.id}): the answer {text!r} does not stand at "
                f"character {start} of the context, where there is {there!r}"
            )
    return ""


def _items(node: Any, name: str, where: str) -> list[Any]:
    if not isinstance(node, dict) or not isinstance(node.get(name), list):
        raise UserError(f"{where}: a list {name!r} is expected, as in SQuAD's files")
    return node[name]


def _text(node: Any, name: str, where: str) -> str:
    if not isinstance(node, dict) or not isinstance(node.get(name), str):
        raise UserError(f"{where}: a text {name!r} is expected, as in SQuAD's files")
    try:
        node[name].encode()  # JSON can hold half a character, which no file of ours can
    except UnicodeEncodeError as error:
        raise UserError(f"{where}: {name!r} is no Unicode text ({error})") from error
    return node[name]


def _start(answer: dict[str, Any], where: str) -> int:
    start = answer.get("answer_start")
    if type(start) is not int or start < 0:
        raise UserError(f"{where}: 'answer_start' is {start!r}: it must be a number of characters")
    return start


def normalized(answer: str) -> str:
    """An answer as the official scripts compare it."""
    text = answer.lower().translate(_WITHOUT_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def exact_match(answer: str, truth: str) -> float:
    """1 where two answers are the same once normalised, else 0."""
    return float(normalized(answer) == normalized(truth))


def f1(answer: str, truth: str) -> float:
    """The harmonic mean of precision and recall over the words of two answers."""
    said, true = normalized(answer).split(), normalized(truth).split()
    common = sum((Counter(said) & Counter(true)).values())
    return 2 * common / (len(said) + len(true)) if common else 0.0


def question_scores(questions: Sequence[Question], said: Sequence[str]) -> np.ndarray:
    """Exact match and F1 of each question, float64 [questions, 2]: the best over its true answers.

    Where some question has no answer, the rules are those of 2.0, else those of 1.1. They differ
    in answers of which normalising leaves nothing.

    Args:
      questions: whose answers are known.
      said: the answer to each; "" says that there is none.
    """
    rule = _second_rules if has_unanswerable(questions) else _first_rules
    return np.array(
        [
            rule(answer, [truth for truth, _ in question.answers or ()])
            for question, answer in zip(questions, said, strict=True)
        ]
    ).reshape(-1, 2)


def has_unanswerable(questions: Sequence[Question]) -> bool:
    """Whether some question is known to have no answer: the data are those of 2.0."""
    return any(question.answers == () for question in questions)


def _first_rules(said: str, truths: Sequence[str]) -> tuple[float, float]:
    return max(exact_match(said, true) for true in truths), max(f1(said, true) for true in truths)


def _second_rules(said: str, truths: Sequence[str]) -> tuple[float, float]:
    truths = [truth for truth in truths if normalized(truth)]
    if not truths or not normalized(said):
        agreed = float(not truths and not normalized(said))
        return agreed, agreed
    return _first_rules(said, truths)


def scores(questions: Sequence[Question], said: Sequence[str]) -> dict[str, float]:
    """The scores of the official scripts, as fractions.

    Args:
      questions, said: as for `question_scores`.

    Returns:
      "exact_match" and "f1"; where some question has no answer also both of those that have one
      (has_answer_...: HasAns) and of those that have none (no_answer_...: NoAns).
    """
    rows = question_scores(questions, said)
    parts = {"": np.ones(len(rows), bool)}
    if has_unanswerable(questions):
        answerable = np.array([bool(question.answers) for question in questions])
        parts |= {"has_answer_": answerable, "no_answer_": ~answerable}
    return {
        part + name: float(rows[chosen, column].mean())
        for part, chosen in parts.items()
        if chosen.any()
        for column, name in enumerate(("exact_match", "f1"))
    }


def best_null_threshold(gains: np.ndarray, margins: np.ndarray) -> float:
    """The null margin beyond which it is best to say that there is no answer.

    As `find_best_thresh` of evaluate-v2.0.py, but that questions of the same margin answer
    together, as they do under any threshold.

    Args:
      gains: float64 [questions], the score of a question's best answer less that of saying none.
      margins: float64 [questions], how much better no answer scores to the model.

    Returns:
      The smallest margin up to which answers must be given for the best sum of scores; one below
      all of them where none is best given.
    """
    order = np.argsort(margins, kind="stable")
    ordered = margins[order]
    last_of_equals = np.append(ordered[1:] != ordered[:-1], True)
    sums = np.where(last_of_equals, np.cumsum(gains[order]), -np.inf)
    best = int(np.argmax(sums))
    return float(ordered[best] if sums[best] > 0 else np.nextafter(ordered[0], -np.inf))
