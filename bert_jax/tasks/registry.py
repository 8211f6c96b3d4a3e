"""The tasks by name, and what a model directory says of its task.

Every class of this folder's files that derives from `Task` and has a `kind` is a task.
"""

import dataclasses
import importlib
import pkgutil
from pathlib import Path
from typing import Any

import bert_jax.tasks
from bert_jax.errors import UserError
from bert_jax.interop.weights import Weights
from bert_jax.settings import check_values
from bert_jax.tasks.classification import repeated
from bert_jax.tasks.task import Task
from bert_jax.training.run_directory import typed
from bert_jax.training.run_files import read_json

TASK_FILE = "task.json"
# The task of a model that says no more than its architecture and its problem_type.
_KINDS = {
    ("BertForSequenceClassification", "regression"): "regression",
    ("BertForSequenceClassification", "multi_label_classification"): "multilabel",
    ("BertForSequenceClassification", None): "classification",
    ("BertForSequenceClassification", "single_label_classification"): "classification",
    ("BertForTokenClassification", None): "tagging",
    ("BertForQuestionAnswering", None): "question_answering",
    ("BertForMultipleChoice", None): "multiple_choice",
}


def tasks() -> dict[str, type[Task]]:
    """The tasks by their kinds."""
    found: dict[str, type[Task]] = {}
    # Not by __subclasses__: a dataclass with slots is a second class beside the one written.
    for file in pkgutil.iter_modules(bert_jax.tasks.__path__):
        module = importlib.import_module(f"bert_jax.tasks.{file.name}")
        for task in vars(module).values():
            if isinstance(task, type) and issubclass(task, Task) and "kind" in vars(task):
                found[task.kind] = task
    return found


def task_to_json(task: Task) -> dict[str, Any]:
    """A task with its settings and what it has learnt."""
    return {"kind": task.kind, "settings": dataclasses.asdict(task)}


def task_from_json(fields: dict[str, Any], where: str) -> Task:
    """What `task_to_json` gave.

    Raises:
      UserError: it is something else.
    """
    known = tasks()
    kind = fields.get("kind")
    if kind not in list(known):  # what a dict cannot look up is none either
        raise UserError(f"{where}: task {kind!r} is not known; there are {', '.join(known)}")
    try:
        task = typed(known[kind], fields.get("settings"))
        check_values(task, "")
    except (TypeError, UserError) as error:
        raise UserError(f"{where}: not the settings of a {kind} task ({error})") from error
    return task


def stated_task(path: Path) -> Task | None:
    """The task that a task.json tells, None where there is no such file.

    Raises:
      UserError: it tells something else.
    """
    fields = read_json(path)
    return None if fields is None else task_from_json(fields, str(path))


def load_task(directory: Path, weights: Weights) -> Task:
    """The task that a model was fine-tuned for.

    Args:
      directory: of the model: its task.json counts, else what `weights` say.
      weights: of the model.

    Raises:
      UserError: it was fine-tuned for none, or its files contradict each other.
    """
    task = stated_task(directory / TASK_FILE)
    if task is not None:
        if task.architecture != weights.architecture:
            raise UserError(
                f"{directory}: {TASK_FILE} is of a {task.architecture}, and the weights of a "
                f"{weights.architecture}"
            )
        _check_labels(directory, task, weights)
        return task
    problem = weights.head_fields.get("problem_type")
    kind = _KINDS.get((weights.architecture, problem))
    if kind == "classification" and problem is None and weights.labels == 1:
        kind = "regression"  # as transformers takes it
    if kind == "regression" and weights.labels != 1:
        raise UserError(f"{weights.source}: predicts {weights.labels} values; one is supported")
    if kind is None:
        raise UserError(
            f"{weights.source}: is a {weights.architecture} and has no head of a task; fine-tune "
            "it by python -m bert_jax.finetune"
        )
    names = weights.head_fields.get("id2label") or {}
    labels = tuple(str(names.get(str(i), f"LABEL_{i}")) for i in range(weights.labels))
    task = tasks()[kind]()
    longest = min(weights.config.max_position_embeddings, 512)
    given: dict[str, Any] = {"max_length": longest}
    if hasattr(task, "labels"):
        given["labels"] = _distinct(labels, weights.source)
    return dataclasses.replace(task, **given)


def _check_labels(directory: Path, task: Task, weights: Weights) -> None:
    """Refuse labels that config.json, which was written with task.json, calls otherwise.

    One of the two was edited, or is of another model, and no shape would tell.
    """
    told = weights.head_fields.get("id2label")
    if not getattr(task, "labels", ()) or not isinstance(told, dict):
        return
    stated = task.head_fields()["id2label"]
    for index, name in told.items():
        # LABEL_0 and so on are what transformers writes where nobody has named them.
        if name not in (stated.get(index), f"LABEL_{index}"):
            raise UserError(
                f"{directory}: label {index} is {stated.get(index)!r} in {TASK_FILE} and {name!r} "
                "in config.json; restore the file that was changed, or change both alike"
            )


def _distinct(labels: tuple[str, ...], source: str) -> tuple[str, ...]:
    if twice := repeated(labels):
        raise UserError(
            f"{source}: id2label gives two labels the name {twice[0]!r}, and answers go by names; "
            "tell them apart in its config.json"
        )
    return labels
