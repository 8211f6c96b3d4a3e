"""What a fine-tuning run says before it starts, and leaves behind: model, predictions, scores."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from flax.traverse_util import flatten_dict

from bert_jax.data.tokenization import Tokenizer
from bert_jax.files import replace_file
from bert_jax.finetune_config import FinetuneConfig
from bert_jax.finetune_data import Data
from bert_jax.finetune_report import PREDICTIONS, SCORES
from bert_jax.interop import Weights
from bert_jax.interop.huggingface import write_huggingface
from bert_jax.interop.runs import MODEL, tensors_of_params
from bert_jax.report import REPORT_FILE
from bert_jax.reporting.kinds import figures
from bert_jax.tasks.registry import TASK_FILE, task_to_json
from bert_jax.tasks.splits import set_name
from bert_jax.tasks.task import Task
from bert_jax.training.clock import account
from bert_jax.training.console import figure, how_to_continue, table, time_split
from bert_jax.training.metrics import read_metrics
from bert_jax.training.run_files import read_json, write_json
from bert_jax.training.state import parameter_count


class Predicted(NamedTuple):
    """What a model says of a file's examples, as `Task.predictions`, and its scores, if any."""

    path: str
    predictions: Sequence[Mapping[str, Any]]
    scores: Mapping[str, float]

    @property
    def name(self) -> str:
        """See `set_name`."""
        return set_name(self.path)


def header(
    config: FinetuneConfig,
    data: Data,
    mesh: Mapping[str, int],
    params: Any,
    rate: Callable[[str], float],
    step: int,
) -> str:
    """The run before it starts: task, model, examples, steps and padding."""
    model, computed = config.model, data.computed
    leaves: dict[str, Any] = dict(flatten_dict(params, sep="/"))
    frozen = sum(leaf.size for name, leaf in leaves.items() if not rate(name))
    held = f", {frozen:,} of them frozen" if frozen else ""
    rows = [
        ("task", f"{config.task.kind}, best by {config.task.score} on dev"),
        (
            "model",
            f"{model.num_hidden_layers} layers, {model.hidden_size} wide, {model.vocab_size:,} "
            f"pieces, {parameter_count(params):,} parameters{held}, {model.dtype}",
        ),
        ("mesh", " x ".join(f"{name} {size}" for name, size in mesh.items())),
        (
            "examples",
            f"{data.training_examples:,} to train on, {len(data.dev.examples):,} to score"
            + "".join(
                f", {len(scored.examples):,} of {path}" for path, scored in data.others.items()
            ),
        ),
        (
            "lengths",
            f"{computed.full:,} of {len(data.train):,} sequences fill {config.task.max_length} "
            "pieces: no more of a text is read at once",
        ),
        (
            "steps",
            f"{config.total_steps:,}: {config.epochs} "
            f"{'epoch' if config.epochs == 1 else 'epochs'} in batches of {config.batch_size}"
            + (", packed" if config.packing else ""),
        ),
        (
            "padding",
            f"{computed.padding:.1%} of what is computed; padding all to "
            f"{config.task.max_length} pieces would compute {1 / (1 - computed.saved):.1f} times "
            "as much",
        ),
    ]
    if step:
        rows.append(("resumes", f"after step {step:,} of {config.total_steps:,}"))
    return table("fine-tuning", rows)


def write_model(
    directory: Path, config: FinetuneConfig, task: Task, tokenizer: Tokenizer, params: Any
) -> None:
    """Write RUN/model: what `predict` reads and, for its architectures, `transformers`.

    Args:
      directory: of the run.
      config: of the run, resolved.
      task: with what it has learnt.
      tokenizer: of the model.
      params: of the model.
    """
    host = {
        name: np.asarray(jax.device_get(leaf))
        for name, leaf in flatten_dict(params, sep="/").items()
    }
    model = directory / MODEL
    partial, old = directory / f"{MODEL}.partial", directory / f"{MODEL}.old"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    weights = Weights(
        source=str(directory),
        form="a fine-tuning run of bert_jax",
        config=config.model,
        architecture=task.architecture,
        tensors=tensors_of_params(host, config.model, str(directory)),
        tokenizer=tokenizer,
        head_fields=task.head_fields(),
    )
    write_huggingface(weights, partial, "float32")
    write_json(partial / TASK_FILE, task_to_json(task))
    if model.exists():
        # Left by a run that was killed as it ended. Without a model it would be all there is.
        shutil.rmtree(old, ignore_errors=True)
        model.replace(old)
    partial.replace(model)
    shutil.rmtree(old, ignore_errors=True)


def write_results(
    directory: Path,
    config: FinetuneConfig,
    data: Data,
    task: Task,
    results: Sequence[Predicted],
    best_step: int,
) -> None:
    """Write predictions/NAME.jsonl and metrics.json, and what a benchmark wants submitted."""
    folder = directory / PREDICTIONS
    folder.mkdir(exist_ok=True)
    for result in results:
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in result.predictions)
        replace_file(folder / f"{result.name}.jsonl", "".join(lines).encode())
        for name, content in task.exports(Path(result.path), result.predictions).items():
            replace_file(folder / name, content.encode())
    write_json(
        directory / SCORES,
        {
            "task": task.kind,
            "init_from": config.init_from,
            "scratch": config.scratch,
            "score": {"name": task.score, "value": results[0].scores[task.score]},
            "best_step": best_step,
            "steps": config.total_steps,
            "scores": {result.name: dict(result.scores) for result in results if result.scores},
            "figures": {
                result.name: figures(result.predictions, result.path)
                for result in results
                if result.scores
            },
            # Apart from those that are scored: the training file may be among them, under its name.
            "training_examples": data.training_examples,
            "examples": {result.name: len(result.predictions) for result in results},
            "padding": data.computed.padding,
            "padding_saved": data.computed.saved,
        },
    )


def closing_summary(directory: Path, finished: bool) -> str:
    """The run after its end: scores, where the time went, and the next commands."""
    seconds = account(r for r in read_metrics(directory) if r["kind"] == "time")
    rows = [("run", str(directory))]
    if finished:
        told = read_json(directory / SCORES) or {}
        for name, scores in told.get("scores", {}).items():
            text = ", ".join(f"{score} {figure(value, '.4f')}" for score, value in scores.items())
            rows.append((name, text))
        rows.append(("best", f"after step {told['best_step']:,}"))
    rows.append(("time", time_split(seconds)))
    if not finished:
        rows.append(("continue", how_to_continue("bert_jax.finetune")))
        return table("stopped", rows)
    rows.append(("model", f"{directory / MODEL}, for bert_jax.predict and transformers"))
    rows.append(("report", f"{directory / REPORT_FILE}"))
    return table("done", rows)
