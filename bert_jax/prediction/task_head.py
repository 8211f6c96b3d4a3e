"""classify, tag, answer: what the head of a fine-tuned model says."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from bert_jax.data.compressed import kind
from bert_jax.interop.weights import Weights
from bert_jax.prediction.predictor import (
    Predictor,
    encode_noting_cuts,
    encoder_inputs,
    needed_params,
    share,
    unrolled,
)
from bert_jax.tasks.inference import Inference
from bert_jax.tasks.multiple_choice import MultipleChoice
from bert_jax.tasks.question_answering import QuestionAnswering
from bert_jax.tasks.tagging import Tagging
from bert_jax.tasks.task import Feature, Task
from bert_jax.tasks.texts import TextTask

# The commands, and the header of their tables.
COMMANDS = {
    "classify": ("predicted", "probabilities", "text"),
    "tag": ("tags", "text"),
    "answer": ("answer", "probability", "question"),
}
_SHOWN = 5


def command_of(task: Task) -> str:
    """The command that a task is for."""
    if isinstance(task, Tagging):
        return "tag"
    return "answer" if isinstance(task, QuestionAnswering) else "classify"


class TaskHead(Predictor):
    """The predictions of the task that a model was fine-tuned for."""

    def __init__(self, weights: Weights, task: Task, batch_size: int, top: int):
        """Reads the model, as `NextSentence` does.

        Args:
          weights: of a model with the head of `task`, and a vocabulary.
          task: that the model was fine-tuned for; its `max_length` counts.
          batch_size: sequences that are computed together.
          top: candidates to tell of an answer.

        Raises:
          UserError: the model has no vocabulary, or one token type for a task of pairs.
        """
        if len(task.columns) > 1:
            weights.check_pairs()
        self._task = task
        self._top = top
        self.columns = task.columns
        if isinstance(task, TextTask):
            self.file_header = task.header
        self.max_length = task.max_length
        if isinstance(task, QuestionAnswering):
            self.max_length, self.cuttable = task.query, "questions"
        self._command = command_of(task)
        self.header = COMMANDS[self._command]
        model = task.model(unrolled(weights.config))
        self._tokenizer = weights.needed_tokenizer()
        shape = (1, 2, 8) if isinstance(task, MultipleChoice) else (1, 8)
        self._params = needed_params(weights, model, shape=shape)

        def forward(params: Any, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
            outputs: Any = model.apply({"params": params}, *encoder_inputs(batch))
            return outputs

        self._inference = Inference(
            forward,
            self._tokenizer.pad_id,
            batch_size,
            longest=weights.config.max_position_embeddings,
        )

    def item(self, where: str, texts: tuple[str, ...]) -> Any:
        """See `Predictor.item`."""
        return self._task.example(where, texts)

    def read(self, path: Path) -> list[Any] | None:
        """See `Predictor.read`: SQuAD's form, columns of words and tags, choices."""
        ending = kind(path)
        if isinstance(self._task, QuestionAnswering):
            lines = ending != ".json"
        else:
            lines = isinstance(self._task, TextTask) or ending in ("", ".txt")
        return None if lines else self._task.read(path, labelled=False)

    def predict(self, items: Sequence[Any]) -> list[dict[str, Any]]:
        """See `Predictor.predict` and `Task.predictions`."""

        def encoded(rows: Sequence[int], max_length: int) -> list[list[Feature]]:
            task = dataclasses.replace(self._task, max_length=max_length)
            return task.features([items[row] for row in rows], self._tokenizer)

        features, cut = encode_noting_cuts(len(items), encoded, self._task.max_length)
        if isinstance(self._task, QuestionAnswering):
            questions = self._tokenizer.encode_batch([item.text for item in items])
            cut = [{"cut": True} if len(ids) > self.max_length else {} for ids in questions]
        flat = [feature for of_item in features for feature in of_item]
        outputs = iter(self._inference.outputs(self._params, flat))
        grouped = [[next(outputs) for _ in of_item] for of_item in features]
        predictions = self._task.predictions(items, features, grouped)
        return [marks | self._told(said) for said, marks in zip(predictions, cut, strict=True)]

    def _told(self, prediction: dict[str, Any]) -> dict[str, Any]:
        if "n_best" in prediction:
            prediction["n_best"] = prediction["n_best"][: self._top]
        return prediction

    def rows(self, prediction: Mapping[str, Any]) -> list[tuple[str, ...]]:
        """See `Predictor.rows`; of a question, a row an answer."""
        if self._command == "tag":
            return [(_tags(prediction), prediction["text"])]
        if self._command == "answer":
            answers = [
                (answer["predicted"] or "(none)", share(answer["probability"]))
                for answer in prediction["n_best"]
            ]
            questions = [prediction["text"]] + [""] * (len(answers) - 1)
            return [(*a, question) for a, question in zip(answers, questions, strict=True)]
        texts = [prediction["text"], prediction.get("pair"), *prediction.get("choices", ())]
        text = " | ".join(text for text in texts if text)
        return [(_label(prediction), _shares(prediction.get("probabilities", {})), text)]


def _label(prediction: Mapping[str, Any]) -> str:
    said = prediction["predicted"]
    if isinstance(said, list):  # several labels, or none
        return ", ".join(said) or "(none)"
    return f"{said:.3f}" if isinstance(said, float) else said


def _shares(probabilities: Mapping[str, float]) -> str:
    likeliest = sorted(probabilities.items(), key=lambda item: -item[1])[:_SHOWN]
    return "  ".join(f"{label} {share(probability)}" for label, probability in likeliest)


def _tags(prediction: Mapping[str, Any]) -> str:
    """The entities, or each word with its tag where tags are of no entities."""
    if "entities" in prediction:
        entities = prediction["entities"]
        return "  ".join(f"{entity['type']}: {entity['text']}" for entity in entities) or "(none)"
    pairs = zip(prediction["tokens"], prediction["predicted"], strict=True)
    return " ".join(f"{token}/{tag}" for token, tag in pairs)
