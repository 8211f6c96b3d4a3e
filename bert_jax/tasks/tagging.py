"""Token classification: a tag for each word or character of a sentence (entities, parts of speech).

As in the paper (section 5.3), a word's tag is that of its first piece; what a model says of other
pieces counts for nothing. Words are joined by spaces and encoded as one text, and pieces are found
by their place in it: the ids and the first pieces are those of `is_split_into_words` and `word_ids`
in transformers.
"""

import dataclasses
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.config import BertConfig
from bert_jax.data.tokenization import Tokenizer
from bert_jax.errors import UserError
from bert_jax.models.task_heads import BertForTokenClassification
from bert_jax.settings import setting
from bert_jax.tasks.classification import check_distinct, check_forms
from bert_jax.tasks.columns import Columns, read_sentences
from bert_jax.tasks.entities import (
    OUTSIDE,
    Found,
    are_of_entities,
    compare,
    entities,
    to_iob2,
    total,
)
from bert_jax.tasks.losses import cross_entropy, softmax
from bert_jax.tasks.sequences import sequence
from bert_jax.tasks.task import Example, Feature, Metrics, Task

# What BERT's tokenizers take for words by themselves (tokenization.py, _is_chinese_char).
_HAN = "\u4e00-\u9fff\u3400-\u4dbf\U00020000-\U0002ceaf\uf900-\ufaff\U0002f800-\U0002fa1f"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tagged(Example):
    """A sentence.

    units: what has a tag each: words, or characters with the spaces among them.
    starts: where each begins in `text`.
    tags: of each, those of entities in IOB2; None where they are not known.
    """

    units: tuple[str, ...]
    starts: tuple[int, ...]
    tags: tuple[str, ...] | None = None

    @property
    def spans(self) -> np.ndarray:
        """The characters of `text` that each unit is, int64 [units, 2], end exclusive."""
        starts = np.array(self.starts, np.int64)
        return np.stack([starts, starts + [len(unit) for unit in self.units]], axis=1)


@dataclasses.dataclass(slots=True, kw_only=True)
class Tagging(Task):
    """A tag for each unit. What is beyond `max_length` pieces is cut, and gets O."""

    units: str = setting("words", "what has a tag", ("words", "characters"))
    token_column: str = setting("tokens", "column of the units; in JSON and Parquet, of lists")
    tag_column: str = setting("tags", "column of the tags; in JSON and Parquet, of lists")
    header: tuple[str, ...] = setting(
        (), "names of the columns; empty: units are in the first one, tags in the last"
    )
    comment: str = setting("##", "what lines of columns that are no units begin with")
    labels: tuple[str, ...] = setting((), "tags; empty learns them from the training examples")
    score: str = setting(
        "f1",
        "score of dev that picks the best model: f1, precision and recall are of entities",
        ("f1", "precision", "recall", "accuracy"),
    )

    kind: ClassVar[str] = "tagging"
    architecture: ClassVar[str] = "BertForTokenClassification"
    of_pieces: ClassVar[bool] = True

    def read(self, path: Path, labelled: bool = True) -> list[Tagged]:
        """See `Task.read`; IOB1 and IOBES become IOB2."""
        columns = Columns(self.token_column, self.tag_column, self.header, self.comment)
        gap = " " if self.units == "words" else ""
        examples = []
        for where, units, tags in read_sentences(path, columns, labelled):
            ends = np.cumsum([len(unit) + len(gap) for unit in units])
            examples.append(
                Tagged(
                    where=where,
                    text=gap.join(units),
                    units=units,
                    starts=(0, *ends[:-1].tolist()),
                    tags=None if tags is None else to_iob2(tags),
                )
            )
        if not examples:
            raise UserError(f"{path}: holds no sentence")
        return examples

    def example(self, where: str, texts: Sequence[str]) -> Tagged:
        """See `Task.example`: of the text's characters, or its words with punctuation apart."""
        [text] = texts
        spans = _words(text) if self.units == "words" else ((i, i + 1) for i in range(len(text)))
        units = [(text[start:end], start) for start, end in spans]
        return Tagged(
            where=where,
            text=text,
            units=tuple(unit for unit, _ in units),
            starts=tuple(start for _, start in units),
        )

    def learn(self, examples: Sequence[Tagged]) -> Self:
        """See `Task.learn`: O, then B and I of each type by name; other tags by name."""
        check_distinct(self.labels)
        # What is known already counts too: all sentences with entities may be held out.
        seen = {*self.labels, *(tag for example in examples for tag in example.tags or ())}
        check_forms(sorted(seen), self.train)
        if self.score != "accuracy" and not are_of_entities(seen):
            raise UserError(
                f"config.task.score={self.score!r} is of entities, which have tags such as B-PER, "
                f"I-PER and O; {self.train} has {_shown(seen)}: choose accuracy"
            )
        kinds = sorted({tag[2:] for tag in seen} - {""})
        # In small data, an entity of several words may be missing where dev has one.
        iob2 = (OUTSIDE, *(f"{place}-{kind}" for kind in kinds for place in "BI"))
        learnt = iob2 if are_of_entities(seen) else tuple(sorted(seen))
        return dataclasses.replace(self, labels=self.labels or learnt)

    def check(self, examples: Sequence[Tagged]) -> None:
        """See `Task.check`."""
        known = set(self.labels)
        for example in examples:
            for unit, tag in zip(example.units, example.tags or (), strict=False):
                if tag not in known:
                    raise UserError(
                        f"{example.where}: tag {tag!r} of {unit!r} is none of those of training: "
                        f"{_shown(self.labels)}"
                    )

    def features(self, examples: Sequence[Tagged], tokenizer: Tokenizer) -> list[list[Feature]]:
        """See `Task.features`.

        token_offsets, int32 [2, length], are the characters of the text that each piece stands for;
        token_labels, int32 [length], and token_weights, float32 [length], tell the tags of the
        pieces that stand for a unit.
        """
        self.check(examples)
        encoded = tokenizer.encode_with_offsets([example.text for example in examples])
        number = {tag: index for index, tag in enumerate(self.labels)}
        room = self.max_length - 2
        features = []
        for example, (ids, offsets) in zip(examples, encoded, strict=True):
            feature = sequence([ids[:room]], tokenizer)
            feature["token_offsets"] = np.pad(offsets[:room], ((1, 1), (0, 0))).T.astype(np.int32)
            if example.tags is not None:
                feature |= _target(feature, example.spans, [number[tag] for tag in example.tags])
            features.append([feature])
        return features

    def model(self, config: BertConfig) -> nn.Module:
        """See `Task.model`."""
        return BertForTokenClassification(config, len(self.labels))

    def metrics(self, outputs: Mapping[str, jax.Array], batch: Mapping[str, jax.Array]) -> Metrics:
        """See `Task.metrics`; every unit counts the same."""
        return cross_entropy(outputs["token_logits"], batch["token_labels"], batch["token_weights"])

    def loss_weight(self, batch: Mapping[str, jax.Array]) -> jax.Array:
        """See `Task.loss_weight`."""
        return jnp.sum(batch["token_weights"])

    def predictions(
        self,
        examples: Sequence[Tagged],
        features: Sequence[list[Feature]],
        outputs: Sequence[Sequence[Mapping[str, np.ndarray]]],
    ) -> list[dict[str, Any]]:
        """See `Task.predictions`: lists, with a value for each unit.

        "predicted" are tags, "probabilities" theirs, null where no piece stands for a unit;
        "entities" have a type, their text and its place in the whole, in characters, end exclusive;
        "cut" is how many units are beyond the longest sequence, where there are such.
        """
        return [
            self._prediction(example, feature, output["token_logits"])
            for example, [feature], [output] in zip(examples, features, outputs, strict=True)
        ]

    def scores(
        self, examples: Sequence[Tagged], predictions: Sequence[Mapping[str, Any]]
    ) -> dict[str, float]:
        """Accuracy over units; of entities precision, recall and F1, all types together."""
        pairs = [
            pair
            for example, prediction in zip(examples, predictions, strict=True)
            for pair in zip(example.tags or (), prediction["predicted"], strict=True)
        ]
        scores = {"accuracy": sum(true == said for true, said in pairs) / len(pairs)}
        if are_of_entities(self.labels):
            found = total(self.found(examples, predictions).values())
            scores |= {"f1": found.f1, "precision": found.precision, "recall": found.recall}
        return scores

    def found(
        self, examples: Sequence[Tagged], predictions: Sequence[Mapping[str, Any]]
    ) -> dict[str, Found]:
        """How well entities are found, by type."""
        return compare(
            [example.tags or () for example in examples],
            [prediction["predicted"] for prediction in predictions],
        )

    def head_fields(self) -> dict[str, Any]:
        """See `Task.head_fields`."""
        return {
            "id2label": {str(index): label for index, label in enumerate(self.labels)},
            "label2id": {label: index for index, label in enumerate(self.labels)},
        }

    def _prediction(self, example: Tagged, feature: Feature, logits: np.ndarray) -> dict[str, Any]:
        shares = softmax(logits)
        pieces = pieces_of_units(feature["token_offsets"].T, example.spans)
        if self.units == "characters":
            pieces = _with_marks(pieces, example.units)
        tags = unit_tags(pieces, [self.labels[label] for label in shares.argmax(axis=-1)])
        prediction: dict[str, Any] = {"text": example.text, "tokens": list(example.units)}
        if example.tags is not None:
            prediction["label"] = list(example.tags)
        best = shares.max(axis=-1)
        prediction |= {
            "predicted": tags,
            "probabilities": [float(best[p]) if p >= 0 else None for p in pieces],
        }
        if are_of_entities(self.labels):
            prediction["entities"] = _described(example, tags)
        last = np.max(np.flatnonzero(pieces >= 0), initial=-1)
        full = len(feature["input_ids"]) == self.max_length  # else what has no piece is a mark
        if full and (cut := sum(not unit.isspace() for unit in example.units[last + 1 :])):
            prediction["cut"] = cut
        return prediction


def pieces_of_units(offsets: np.ndarray, spans: np.ndarray) -> np.ndarray:
    """The piece that stands for each unit: int64 [units], -1 where none does.

    It is the first that begins in the unit; else (characters) the one that began before it and
    covers its first character. The first of several units with the same piece is the one whose tag
    the piece has.

    Args:
      offsets: int [pieces, 2], characters of the text, end exclusive; pieces of no characters, as
        [CLS] is one, stand for no unit.
      spans: int [units, 2], characters of the text, end exclusive.
    """
    visible = np.flatnonzero(offsets[:, 1] > offsets[:, 0])
    # One that begins and ends beyond the text: each search then finds a piece.
    starts = np.append(offsets[visible, 0], np.iinfo(np.int64).max)
    ends = np.append(offsets[visible, 1], 0)
    numbers = np.append(visible, -1)
    first = np.searchsorted(starts[:-1], spans[:, 0])
    begun = starts[first] < spans[:, 1]
    covered = ends[first - 1] > spans[:, 0]
    return np.where(begun, numbers[first], np.where(covered, numbers[first - 1], -1))


def _with_marks(pieces: np.ndarray, units: Sequence[str]) -> np.ndarray:
    """`pieces` with those of their letters for marks that have none: a tokenizer strips accents."""
    found = pieces.copy()
    for index in range(1, len(found)):
        if found[index] < 0 and all(unicodedata.category(mark) == "Mn" for mark in units[index]):
            found[index] = found[index - 1]
    return found


def unit_tags(pieces: Sequence[int] | np.ndarray, tags: Sequence[str]) -> list[str]:
    """The tags of units, from those that a model gives to pieces.

    A unit of the piece of the unit before goes on with the entity. One without a piece (a space,
    what is beyond the longest sequence) is in an entity where what is before and what comes after
    are, and else outside.

    Args:
      pieces: from `pieces_of_units`.
      tags: of all pieces.
    """
    found: list[str | None] = []
    for index, piece in enumerate(pieces):
        tag = tags[piece] if piece >= 0 else None
        again = index > 0 and piece == pieces[index - 1]
        found.append("I" + tag[1:] if tag and again and tag.startswith("B-") else tag)
    after, following = OUTSIDE, []
    for tag in reversed(found):
        after = tag or after
        following.append(after)
    whole: list[str] = []
    for tag, after in zip(found, reversed(following), strict=True):
        before = whole[-1] if whole else OUTSIDE
        inside = after.startswith("I-") and before[1:] == after[1:]
        whole.append(tag or (after if inside else OUTSIDE))
    return whole


def _target(feature: Feature, spans: np.ndarray, labels: Sequence[int]) -> Feature:
    """The labels and the weights of the pieces that stand for units."""
    pieces = pieces_of_units(feature["token_offsets"].T, spans)
    first = (pieces >= 0) & (pieces != np.append(-1, pieces[:-1]))
    token_labels = np.zeros(len(feature["input_ids"]), np.int32)
    token_weights = np.zeros(len(feature["input_ids"]), np.float32)
    token_labels[pieces[first]] = np.array(labels)[first]
    token_weights[pieces[first]] = 1
    return {
        "token_labels": token_labels,
        "token_weights": token_weights,
        "weight": np.array(1, np.float32),
    }


def _described(example: Tagged, tags: Sequence[str]) -> list[dict[str, Any]]:
    """The entities of tags, as JSON."""
    spans = example.spans.tolist()
    found = [(kind, spans[first][0], spans[end - 1][1]) for kind, first, end in entities(tags)]
    return [
        {"type": kind, "text": example.text[start:end], "start": start, "end": end}
        for kind, start, end in found
    ]


def _words(text: str) -> Iterator[tuple[int, int]]:
    """The spans of words between white space, the punctuation around them and Han characters apart.

    Chinese has no spaces; its tagged sentences have a character a line, mostly.
    """
    for match in re.finditer(rf"[{_HAN}]|[^\s{_HAN}]+", text):
        start, end = match.span()
        inside = [index for index in range(start, end) if not _is_punctuation(text[index])]
        first, last = (inside[0], inside[-1] + 1) if inside else (end, end)
        yield from ((index, index + 1) for index in range(start, first))
        if inside:
            yield first, last
        yield from ((index, index + 1) for index in range(last, end))


def _is_punctuation(character: str) -> bool:
    return unicodedata.category(character)[0] in "PS"


def _shown(tags: Sequence[str] | set[str]) -> str:
    return ", ".join(sorted(tags)[:20])
