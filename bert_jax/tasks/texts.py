"""What the tasks over a text, or a pair of texts, share: columns, sequences and predictions."""

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.data.tokenization import Tokenizer
from bert_jax.errors import UserError
from bert_jax.settings import setting
from bert_jax.tasks.glue import TASKS, submission
from bert_jax.tasks.sequences import encode
from bert_jax.tasks.tables import Row, field, is_missing, read_examples, text_field
from bert_jax.tasks.task import Example, Feature, Task

FLOAT32_MAX = float(np.finfo(np.float32).max)  # of a number that the loss is made of
BROKEN_ROWS = "a row that cannot be read: an error, or left out and counted"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Labelled(Example):
    """A text, maybe with a second one.

    pair: the second text.
    label: as `TextTask.parse_label` gives it, None where it is not known.
    id: what the file calls the row, None where it has no such column.
    """

    pair: str | None = None
    label: Any = None
    id: str | None = None


@dataclasses.dataclass(slots=True, kw_only=True)
class TextTask(Task):
    """A text or a pair of texts, about which a head over the pooled output says something."""

    text_column: str = setting("text", "column of the text")
    pair_column: str = setting("", "column of the second text; empty for single texts")
    label_column: str = setting("label", "column of the label")
    id_column: str = setting("", "column that is given back with each prediction, where there")
    header: tuple[str, ...] = setting((), "names of the columns of files that do not name them")
    broken: str = setting("error", BROKEN_ROWS, ("error", "skip"))
    glue: str = setting(
        "",
        "of GLUE's tasks the one that this is: test predictions are written in GLUE's form, too",
        ("", *TASKS),
    )

    @abstractmethod
    def parse_label(self, value: Any, where: str) -> Any:
        """The label that a row's value, not an empty one, stands for.

        Raises:
          UserError: it stands for none.
        """

    @abstractmethod
    def target(self, label: Any) -> Feature:
        """ "label" and "weight" (float32 scalar) of a label."""

    @abstractmethod
    def prediction(self, logits: np.ndarray) -> dict[str, Any]:
        """What the logits of an example, float32 [C], say, as JSON: "predicted" and more."""

    def read(self, path: Path, labelled: bool = True) -> list[Labelled]:
        """See `Task.read`."""

        def example(where: str, row: Row) -> Labelled:
            name = row.get(self.id_column) if self.id_column else None
            return Labelled(
                where=where,
                text=text_field(row, self.text_column, where),
                pair=text_field(row, self.pair_column, where) if self.pair_column else None,
                label=self._label(row, where, labelled),
                id=None if name is None else str(name),
            )

        return read_examples(path, self.header, example, skip=self.broken == "skip")

    @property
    def columns(self) -> tuple[str, ...]:
        """See `Task.columns`."""
        return (self.text_column, self.pair_column) if self.pair_column else (self.text_column,)

    def example(self, where: str, texts: Sequence[str]) -> Labelled:
        """See `Task.example`."""
        return Labelled(where=where, text=texts[0], pair=texts[1] if self.pair_column else None)

    def features(self, examples: Sequence[Labelled], tokenizer: Tokenizer) -> list[list[Feature]]:
        """See `Task.features`."""
        self.check([example for example in examples if example.label is not None])
        pairs = [example.pair or "" for example in examples] if self.pair_column else None
        texts = [example.text for example in examples]
        features = encode(texts, pairs, tokenizer, self.max_length)
        for feature, example in zip(features, examples, strict=True):
            if example.label is not None:
                feature.update(self.target(example.label))
        return [[feature] for feature in features]

    def predictions(
        self,
        examples: Sequence[Labelled],
        features: Sequence[list[Feature]],
        outputs: Sequence[Sequence[Mapping[str, np.ndarray]]],
    ) -> list[dict[str, Any]]:
        """See `Task.predictions`; with "id" and "pair" where there are such."""
        del features
        return [
            _described(example) | self.prediction(of_example[0]["logits"])
            for example, of_example in zip(examples, outputs, strict=True)
        ]

    def exports(self, path: Path, predictions: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """See `Task.exports`: of a test set of GLUE, its submission."""
        return submission(self.glue, path, predictions) if self.glue else {}

    def _label(self, row: Row, where: str, labelled: bool) -> Any:
        name = self.label_column
        value = field(row, name, where) if labelled else row.get(name)
        if not is_missing(value):
            return self.parse_label(value, where)
        if labelled:
            raise UserError(f"{where}: column {name!r} is empty: a label is expected")
        return None


def _described(example: Labelled) -> dict[str, Any]:
    """What is known of an example, as JSON."""
    known = {name: getattr(example, name) for name in ("id", "text", "pair", "label")}
    return {name: value for name, value in known.items() if value is not None}
