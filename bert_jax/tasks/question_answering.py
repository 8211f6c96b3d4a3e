"""Extractive question answering: the stretch of a context that answers a question about it."""

import dataclasses
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.config import BertConfig
from bert_jax.data.tokenization import Tokenizer
from bert_jax.errors import UserError
from bert_jax.models.task_heads import BertForQuestionAnswering
from bert_jax.settings import setting
from bert_jax.tasks.losses import cross_entropy, softmax
from bert_jax.tasks.squad import (
    Question,
    best_null_threshold,
    has_unanswerable,
    question_scores,
    read_squad,
    scores,
)
from bert_jax.tasks.task import Feature, Metrics, Task
from bert_jax.tasks.windows import (
    Span,
    best_spans,
    covering_pieces,
    null_score,
    positions_in_window,
    window_features,
)

_TOLD = 5  # left-out questions that are named
_AROUND = 80  # characters of the context that are told on each side of an answer


@dataclasses.dataclass(slots=True, kw_only=True)
class QuestionAnswering(Task):
    """Answers that stand in the context; with 2.0's data also that there is none.

    The figures are the defaults of run_squad.py.
    """

    stride: int = setting(128, "pieces of the context from one window to the next")
    query: int = setting(64, "most pieces of a question; a longer one is cut")
    answer: int = setting(30, "most pieces of an answer")
    n_best: int = setting(20, "answers told, and starts and ends of a window that are combined")
    mismatched: str = setting(
        "skip",
        "a question whose answer doesn't stand where the file says: skip, left out, counted and "
        "named; refuse, an error",
        ("skip", "refuse"),
    )
    unanswerable: bool = setting(
        False, "some contexts have no answer; learnt of the training examples"
    )
    null_threshold: float = setting(
        0.0,
        "how much better no answer must score than the best one to be said; tuned on dev where "
        "some contexts have no answer",
    )

    max_length: int = setting(384, "pieces a sequence: the question and a window of the context")
    score: str = setting("f1", "score of dev that picks the best model", ("f1", "exact_match"))

    kind: ClassVar[str] = "question_answering"
    packable: ClassVar[bool] = False
    architecture: ClassVar[str] = "BertForQuestionAnswering"
    of_pieces: ClassVar[bool] = True

    def read(self, path: Path, labelled: bool = True) -> list[Question]:
        """See `Task.read`: of a SQuAD file, 1.1 or 2.0."""
        questions, rejected = read_squad(path, labelled)
        if rejected:
            told = f"{len(rejected):,} of {len(questions) + len(rejected):,} questions are so"
            if self.mismatched == "refuse" or not questions:
                raise UserError(f"{rejected[0]}; {told}: mend the file")
            for line in rejected[:_TOLD]:
                print(line, file=sys.stderr)
            print(f"{path}: {told} and are left out", file=sys.stderr)
        if not questions:
            raise UserError(f"{path}: has no questions")
        return questions

    @property
    def columns(self) -> tuple[str, ...]:
        """See `Task.columns`."""
        return ("question", "context")

    def example(self, where: str, texts: Sequence[str]) -> Question:
        """See `Task.example`."""
        return Question(where=where, text=texts[0], context=texts[1], id=where)

    def learn(self, examples: Sequence[Question]) -> Self:
        """See `Task.learn`: whether contexts may have no answer."""
        unanswerable = self.unanswerable or has_unanswerable(examples)
        return dataclasses.replace(self, unanswerable=unanswerable)

    def check(self, examples: Sequence[Question]) -> None:
        """See `Task.check`: `read` has checked all there is."""

    def features(self, examples: Sequence[Question], tokenizer: Tokenizer) -> list[list[Feature]]:
        """See `Task.features`: a feature a window, with labels "start" and "end", int32 scalars.

        As in run_squad.py, they are of the first answer, and [CLS] in windows that don't hold it.
        """
        contexts = list(dict.fromkeys(example.context for example in examples))
        encoded = dict(zip(contexts, tokenizer.encode_with_offsets(contexts), strict=True))
        queries = tokenizer.encode_batch([example.text for example in examples])
        return [
            self._windows(example, query, *encoded[example.context], tokenizer)
            for example, query in zip(examples, queries, strict=True)
        ]

    def _windows(
        self,
        example: Question,
        query_ids: np.ndarray,
        context_ids: np.ndarray,
        offsets: np.ndarray,
        tokenizer: Tokenizer,
    ) -> list[Feature]:
        query_ids = query_ids[: self.query]
        if len(query_ids) > self.max_length - 4:
            raise UserError(
                f"{example.where}: a question of {len(query_ids)} pieces leaves no room for the "
                f"context in config.task.max_length={self.max_length}; lower config.task.query"
            )
        windows = window_features(
            query_ids, context_ids, offsets, tokenizer, self.max_length, self.stride
        )
        if example.answers is not None:
            pieces = None
            if example.answers:
                text, start = example.answers[0]
                pieces = covering_pieces(offsets, start, start + len(text))
            for first, feature in windows:
                positions = positions_in_window(feature, first, pieces)
                feature["start"], feature["end"] = np.array(positions, np.int32)
                feature["weight"] = np.array(1, np.float32)
        return [feature for _, feature in windows]

    def model(self, config: BertConfig) -> BertForQuestionAnswering:
        """See `Task.model`."""
        return BertForQuestionAnswering(config)

    def metrics(self, outputs: Mapping[str, jax.Array], batch: Mapping[str, jax.Array]) -> Metrics:
        """The mean of both ends' cross-entropies, and the share of windows with both right.

        As in run_squad.py, all positions of a sequence compete, padding too.
        """
        ends = (("token_starts", "start"), ("token_ends", "end"))
        losses = [cross_entropy(outputs[o], batch[b], batch["weight"])["loss"] for o, b in ends]
        hits = [jnp.argmax(outputs[o], axis=-1) == batch[b] for o, b in ends]
        counted = (batch["weight"] > 0).astype(jnp.float32)
        return {
            "loss": ((losses[0][0] + losses[1][0]) / 2, losses[0][1]),
            "exact_spans": (jnp.sum(hits[0] * hits[1] * counted), jnp.sum(counted)),
        }

    def predictions(
        self,
        examples: Sequence[Question],
        features: Sequence[list[Feature]],
        outputs: Sequence[Sequence[Mapping[str, np.ndarray]]],
    ) -> list[dict[str, Any]]:
        """See `Task.predictions`.

        Returns:
          "id", "text" (the question), "label" (its true answers); "predicted", the answer, "" for
          none, "start" and "end" of its characters in the context (null for none), "around", the
          words before and after it there, and "probability" among "n_best", which has such
          values for each candidate, the one to say first, no answer where the threshold puts it;
          "null_margin", how much better no answer scores than the best one (null where there is no
          other).
        """
        return [
            self._prediction(*of_example)
            for of_example in zip(examples, features, outputs, strict=True)
        ]

    def _prediction(
        self,
        example: Question,
        features: list[Feature],
        outputs: Sequence[Mapping[str, np.ndarray]],
    ) -> dict[str, Any]:
        spans = best_spans(features, outputs, example.context, self.answer, self.n_best)
        null = null_score(outputs)
        candidates: list[Span | None] = [*spans]
        if self.unanswerable or not spans:
            place = sum(null - span.score <= self.null_threshold for span in spans)
            candidates.insert(place, None)
        logits = [span.score if span else null for span in candidates]
        n_best = [
            _candidate(example.context, span, float(share))
            for span, share in zip(candidates, softmax(np.array(logits)), strict=True)
        ]
        prediction: dict[str, Any] = {"id": example.id, "text": example.text}
        if example.answers is not None:
            prediction["label"] = list(dict.fromkeys(text for text, _ in example.answers))
        margin = null - spans[0].score if spans else None
        more = {"around": _around(example.context, candidates[0]), "null_margin": margin}
        return prediction | n_best[0] | more | {"n_best": n_best}

    def scores(
        self, examples: Sequence[Question], predictions: Sequence[Mapping[str, Any]]
    ) -> dict[str, float]:
        """The official scores; see `squad.scores`."""
        return scores(examples, [prediction["predicted"] for prediction in predictions])

    def exports(self, path: Path, predictions: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """See `Task.exports`: what the official scripts read, an object of ids and answers."""
        answers = {prediction["id"]: prediction["predicted"] for prediction in predictions}
        return {f"{path.stem}_answers.json": json.dumps(answers, ensure_ascii=False) + "\n"}

    def tuned(self, examples: Sequence[Question], predictions: Sequence[Mapping[str, Any]]) -> Self:
        """This task with the null threshold that gives the best `score` on dev."""
        if not (self.unanswerable and has_unanswerable(examples)):
            return self
        told = [prediction["n_best"] for prediction in predictions]
        best = [next((c["predicted"] for c in n_best if c["predicted"]), "") for n_best in told]
        column = ("exact_match", "f1").index(self.score)
        said, unsaid = (
            question_scores(examples, answers)[:, column] for answers in (best, [""] * len(best))
        )
        margins = np.array([prediction["null_margin"] or 0.0 for prediction in predictions])
        threshold = best_null_threshold(said - unsaid, margins)
        return dataclasses.replace(self, null_threshold=threshold)


def _candidate(context: str, span: Span | None, share: float) -> dict[str, Any]:
    if span is None:
        return {"predicted": "", "start": None, "end": None, "probability": share}
    text = context[span.start : span.end]
    return {"predicted": text, "start": span.start, "end": span.end, "probability": share}


def _around(context: str, span: Span | None) -> list[str]:
    """What stands before and after an answer; the beginning of the context where there is none.

    An ellipsis stands for the rest, and a word that would be cut is part of that.
    """
    start, end = (span.start, span.end) if span else (0, 0)
    before, after = context[max(0, start - _AROUND) : start], context[end : end + _AROUND]
    if start > _AROUND:
        before = "\u2026" + re.sub(r"^\S*\s", "", before)
    if end + _AROUND < len(context):
        after = re.sub(r"\s\S*$", "", after) + "\u2026"
    return [before, after]
