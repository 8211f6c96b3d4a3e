"""Multiple choice: which of several continuations of a text is the right one, as in SWAG."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import jax
import numpy as np

from bert_jax.config import BertConfig
from bert_jax.data.buckets import collate
from bert_jax.data.tokenization import Tokenizer
from bert_jax.errors import UserError
from bert_jax.models.task_heads import BertForMultipleChoice
from bert_jax.settings import setting
from bert_jax.tasks.classification import most_likely
from bert_jax.tasks.losses import cross_entropy
from bert_jax.tasks.sequences import encode
from bert_jax.tasks.tables import Row, field, is_missing, read_examples, text_field
from bert_jax.tasks.task import Example, Feature, Metrics, Task
from bert_jax.tasks.texts import BROKEN_ROWS


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice(Example):
    """A text and its continuations.

    choices: the continuations.
    label: the number of the right one, from 0, as a str; None where it is not known.
    """

    choices: tuple[str, ...]
    label: str | None = None


@dataclasses.dataclass(slots=True, kw_only=True)
class MultipleChoice(Task):
    """One of several continuations of a text.

    Rows have the columns sent1, sent2 (the beginning of each continuation), ending0, ending1, ...
    and label, as SWAG's .csv does; or, in a .jsonl, context, choices (a list) and label. The label
    is the number of the right continuation, from 0.
    """

    broken: str = setting("error", BROKEN_ROWS, ("error", "skip"))
    choices: int = setting(0, "continuations of each text; 0 learns it from the training examples")
    score: str = setting("accuracy", "score of dev that picks the best model", ("accuracy",))

    kind: ClassVar[str] = "multiple_choice"
    architecture: ClassVar[str] = "BertForMultipleChoice"

    def read(self, path: Path, labelled: bool = True) -> list[Choice]:
        """See `Task.read`."""

        def example(where: str, row: Row) -> Choice:
            text, choices = _choices(row, where)
            label = field(row, "label", where) if labelled else row.get("label")
            if is_missing(label) and not labelled:
                return Choice(where=where, text=text, choices=choices)
            numbers = [str(number) for number in range(len(choices))]
            if str(label) not in numbers:
                raise UserError(f"{where}: label {label!r} is none of {', '.join(numbers)}")
            return Choice(where=where, text=text, choices=choices, label=str(label))

        return read_examples(path, (), example, skip=self.broken == "skip")

    @property
    def columns(self) -> tuple[str, ...]:
        """See `Task.columns`; two choices until the examples have told how many."""
        return ("context", *(f"choice {number}" for number in range(self.choices or 2)))

    def example(self, where: str, texts: Sequence[str]) -> Choice:
        """See `Task.example`."""
        return Choice(where=where, text=texts[0], choices=tuple(texts[1:]))

    def learn(self, examples: Sequence[Choice]) -> Self:
        """See `Task.learn`: the number of choices."""
        return dataclasses.replace(self, choices=self.choices or len(examples[0].choices))

    def check(self, examples: Sequence[Choice]) -> None:
        """See `Task.check`."""
        for example in examples:
            if len(example.choices) != self.choices:
                raise UserError(
                    f"{example.where}: {len(example.choices)} choices, and in training there are "
                    f"{self.choices}"
                )

    def features(self, examples: Sequence[Choice], tokenizer: Tokenizer) -> list[list[Feature]]:
        """See `Task.features`; arrays are int32 [choices, length], a label an int32 scalar."""
        self.check(examples)
        texts = [example.text for example in examples for _ in example.choices]
        endings = [choice for example in examples for choice in example.choices]
        rows = encode(texts, endings, tokenizer, self.max_length)
        features = []
        for number, example in enumerate(examples):
            of_example = rows[number * self.choices : (number + 1) * self.choices]
            feature = collate(of_example, self.choices, tokenizer.pad_id, self.max_length)
            if example.label is not None:
                feature["label"] = np.array(example.label, np.int32)
                feature["weight"] = np.array(1, np.float32)
            features.append([feature])
        return features

    def model(self, config: BertConfig) -> BertForMultipleChoice:
        """See `Task.model`."""
        return BertForMultipleChoice(config)

    def metrics(self, outputs: Mapping[str, jax.Array], batch: Mapping[str, jax.Array]) -> Metrics:
        """See `Task.metrics`."""
        return cross_entropy(outputs["logits"], batch["label"], batch["weight"])

    def predictions(
        self,
        examples: Sequence[Choice],
        features: Sequence[list[Feature]],
        outputs: Sequence[Sequence[Mapping[str, np.ndarray]]],
    ) -> list[dict[str, Any]]:
        """See `Task.predictions`; with "choices", whose numbers as str are the labels."""
        del features
        numbers = [str(number) for number in range(self.choices)]
        predictions = []
        for example, of_example in zip(examples, outputs, strict=True):
            known = {"text": example.text, "choices": list(example.choices)}
            if example.label is not None:
                known["label"] = example.label
            predictions.append(known | most_likely(numbers, of_example[0]["logits"]))
        return predictions

    def scores(
        self, examples: Sequence[Choice], predictions: Sequence[Mapping[str, Any]]
    ) -> dict[str, float]:
        """Accuracy."""
        pairs = zip(examples, predictions, strict=True)
        right = [example.label == prediction["predicted"] for example, prediction in pairs]
        return {"accuracy": sum(right) / len(right)}


def _choices(row: Row, where: str) -> tuple[str, tuple[str, ...]]:
    """The text of a row and its continuations."""
    if "choices" in row:
        choices = row["choices"]
        if not isinstance(choices, list) or len(choices) < 2:
            raise UserError(f"{where}: choices must be a list of two texts or more")
        named = {f"choices[{number}]": choice for number, choice in enumerate(choices)}
        return text_field(row, "context", where), tuple(
            text_field(named, name, where) for name in named
        )
    endings = sorted((n for n in row if re.fullmatch(r"ending\d+", n)), key=lambda n: int(n[6:]))
    if len(endings) < 2:
        raise UserError(
            f"{where}: no columns ending0, ending1, ... and no list in choices; there are "
            f"{', '.join(row)}"
        )
    start = field(row, "sent2", where) or ""  # null, in JSON, is no beginning
    if not isinstance(start, str):
        raise UserError(f"{where}: column 'sent2' holds {start!r}: a text is expected")
    return text_field(row, "sent1", where), tuple(
        f"{start} {text_field(row, name, where)}".strip() for name in endings
    )
