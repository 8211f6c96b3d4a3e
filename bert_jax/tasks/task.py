"""What fine-tuning asks of a task. Each file of this folder answers for one.

A task is its settings and the functions that go with them: rows of a file become examples, examples
become features (what the model reads), the model's outputs become predictions, and predictions
become the scores of the field. The loop, the batches, the checkpoints, the report and `predict`
know tasks by this interface alone.
"""

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.config import BertConfig
from bert_jax.data.tokenization import Tokenizer
from bert_jax.settings import setting

# What a model reads and what it is to say of it. input_ids, token_type_ids and attention_mask are
# int32 [length] (or [choices, length]); labels have whatever shape the task gives them. An array
# whose last axis is as long as that of input_ids and whose name begins with "token_" is padded with
# them. `weight`, a float32 scalar, is what the feature counts in the loss.
Feature = dict[str, np.ndarray]
Outputs = Mapping[str, np.ndarray]
Metrics = dict[str, tuple[jax.Array, jax.Array]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Example:
    """What all tasks' examples have.

    where: the place it came from, `dev.tsv:7`, for messages.
    text: what a person reads of it in a report.
    """

    where: str
    text: str

    @property
    def group(self) -> str:
        """What it shares with examples that are not to be held out without it."""
        return self.text


@dataclasses.dataclass(slots=True, kw_only=True)
class Task:
    """The settings that all tasks have, and what each must say of itself.

    Class attributes:
      kind: the task's name, under which its settings are stored with a model.
      architecture: of transformers: a key of `interop.names.PARTS`.
      frozen_encoder: whether the head alone is trained.
      of_pieces: whether the head reads every piece of the last layer, and not [CLS] alone.
      packable: whether padding has no part in the loss, so that it need not be computed.
    """

    train: str = setting("", "file of the training examples")
    dev: str = setting("", "file that is scored; empty holds dev_fraction of the training file out")
    test: str = setting("", "file to predict, and to score where it has labels")
    also: tuple[str, ...] = setting(
        (), "more files to predict, and to score where they have labels: a second dev set, say"
    )
    dev_fraction: float = setting(0.1, "share of the training examples held out where dev is empty")
    max_length: int = setting(128, "pieces a sequence, special ones included; longer text is cut")
    score: str = setting("accuracy", "score of dev that picks the best model; larger is better")

    kind: ClassVar[str]
    architecture: ClassVar[str]
    frozen_encoder: ClassVar[bool] = False
    of_pieces: ClassVar[bool] = False
    packable: ClassVar[bool] = True

    @abstractmethod
    def read(self, path: Path, labelled: bool = True) -> list[Any]:
        """The examples of a file, a list of the task's own subclass of `Example`.

        Args:
          path: train, dev or test.
          labelled: whether each must have a label; else a label is read where there is one.

        Raises:
          UserError: naming file, line and what is wrong.
        """

    @property
    def columns(self) -> tuple[str, ...]:
        """What the texts of an example are called, as a person is asked for them."""
        return ("text",)

    def example(self, where: str, texts: Sequence[str]) -> Any:
        """An example without a label, of a text for each of `columns`."""
        return Example(where=where, text=texts[0])

    @abstractmethod
    def learn(self, examples: Sequence[Any]) -> Self:
        """This task with what it learns of examples: its labels, where not given or learnt before.

        What it counts, as `Classification.weights`, is of these examples, whatever was before.
        """

    @abstractmethod
    def check(self, examples: Sequence[Any]) -> None:
        """Check labelled examples against what was learnt.

        Raises:
          UserError: a label that training has not seen, say; naming its place.
        """

    @abstractmethod
    def features(self, examples: Sequence[Any], tokenizer: Tokenizer) -> list[list[Feature]]:
        """The features of each example: one, or several where a text is cut into windows.

        Examples without a label have features without one.
        """

    @abstractmethod
    def model(self, config: BertConfig) -> nn.Module:
        """The encoder with the task's head, of `bert_jax.models.task_heads`."""

    @abstractmethod
    def metrics(self, outputs: Mapping[str, jax.Array], batch: Mapping[str, jax.Array]) -> Metrics:
        """Sums and weights over a training batch, float32 scalars, traced by jax; "loss" first.

        A row with weight 0 pads the batch and counts nothing.
        """

    def loss_weight(self, batch: Mapping[str, jax.Array]) -> jax.Array:
        """The weight of "loss" in `metrics`, a float32 scalar, from the batch alone."""
        return jnp.sum(batch["weight"])

    @abstractmethod
    def predictions(
        self, examples: Sequence[Any], features: Sequence[list[Feature]], outputs: Sequence[Any]
    ) -> list[dict[str, Any]]:
        """What the model says of each example, as JSON.

        Args:
          examples: with or without labels.
          features: of each.
          outputs: of each feature of each example: the model's outputs as NumPy arrays, cut to the
            feature's length.

        Returns:
          For each example "text", what is predicted, and "label" where it is known. Of
          classifications "predicted" and "probabilities" (label to probability).
        """

    @abstractmethod
    def scores(
        self, examples: Sequence[Any], predictions: Sequence[Mapping[str, Any]]
    ) -> dict[str, float]:
        """The scores of the field as fractions, `self.score` among them."""

    def exports(self, path: Path, predictions: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """The predictions of the file `path` in the forms that others ask for; most have none.

        Returns:
          The names of the files and what is in them: submissions, say.
        """
        del path, predictions
        return {}

    def tuned(self, examples: Sequence[Any], predictions: Sequence[Mapping[str, Any]]) -> Self:
        """This task with thresholds chosen on the dev set; most have none."""
        del examples, predictions
        return self

    def head_fields(self) -> dict[str, Any]:
        """What `transformers` wants of the head in config.json: id2label, problem_type, ..."""
        return {}
