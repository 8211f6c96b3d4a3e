"""Runs of this package as weights: the newest whole checkpoint in, a model to go on from out."""

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from flax.traverse_util import flatten_dict, unflatten_dict

from bert_jax.config import BertConfig
from bert_jax.data.shards import read_manifest
from bert_jax.data.tokenization import load_tokenizer
from bert_jax.errors import UserError, first_line
from bert_jax.interop.names import CLASSIFIER, PARTS, axis_sizes, table_rows
from bert_jax.interop.params import VOCABULARY, load_params, stacked_name
from bert_jax.interop.weights import Tensor, Weights, architecture_of
from bert_jax.models.config_json import bert_config_from_json
from bert_jax.training.checkpoints import Checkpoints, saved_steps
from bert_jax.training.fingerprint import fingerprint
from bert_jax.training.metrics import read_metrics
from bert_jax.training.run_directory import is_of_finetuning, read_config, read_fingerprint
from bert_jax.training.run_files import read_json, write_json
from bert_jax.training.seal import Damage, check_files, read_seal

CONFIG, CHECKPOINTS, TOKENIZER = "config.json", "checkpoints", "tokenizer"
MODEL = "model"  # of a fine-tuning run, a Hugging Face directory


def model_directory(directory: Path) -> Path:
    """Where the model of a directory lies: in model/ of that of a fine-tuning run, else in itself.

    There the newest checkpoint is not the best one, and does not say its task.

    Raises:
      UserError: the fine-tuning is not finished, so that it has left no model yet.
    """
    # A sweep's runs have no checkpoints left.
    if not any((directory / name).is_dir() for name in (CHECKPOINTS, MODEL)):
        return directory
    if not is_of_finetuning(directory):
        return directory
    if not (directory / MODEL).is_dir():
        raise UserError(
            f"{directory}: its fine-tuning is not finished and has left no {MODEL}/ yet; go on "
            "with it by the command that began it, python -m bert_jax.finetune ... "
            f"--workdir={directory}"
        )
    return directory / MODEL


def read_run(directory: Path) -> Weights:
    """The model of a run's newest whole checkpoint. Nothing is changed in the directory.

    Raises:
      UserError: there is no config or no whole checkpoint, or they disagree.
    """
    where = directory / CONFIG
    fields = read_json(where)
    if fields is None or not isinstance(fields.get("model"), dict):
        raise UserError(f"{directory}: has no {CONFIG} of a run, with the settings of its model")
    config = bert_config_from_json(fields["model"], str(where))
    step, params, damages = _newest_params(directory / CHECKPOINTS)
    _check_depth(params, config.num_hidden_layers, where)
    vocab = directory / TOKENIZER
    tensors = tensors_of_params(params, config, str(where))
    scopes = {row.scope for row in table_rows(config.num_hidden_layers) if row.ours in tensors}
    named, head_fields = fields.get("architecture"), fields.get("head_fields")
    return Weights(
        source=str(directory),
        form=f"bert_jax at step {step:,}",
        config=config,
        architecture=architecture_of(scopes, named if named in tuple(PARTS) else None),
        tensors=tensors,
        tokenizer=load_tokenizer(vocab) if vocab.is_dir() else None,
        vocab=vocab,
        head_fields=head_fields if isinstance(head_fields, dict) else {},
        facts=_facts(directory, step) if "phases" in fields else {},
        notes=tuple(f"{damage}; read is the one of step {step:,}" for damage in damages),
    )


def tensors_of_params(
    params: Mapping[str, np.ndarray], config: BertConfig, where: str
) -> dict[str, Tensor]:
    """The tensors of a model that its parameters hold, by their names.

    Those are the table's, and for a head that the table does not have the parameters' own.

    Args:
      params: by path; layers may be stacked, and the vocabulary padded.
      config: of the model.
      where: what errors call them.

    Raises:
      UserError: a shape that is not the config's.
    """
    bias = params.get(f"{CLASSIFIER}/bias")
    sizes = axis_sizes(config, 2 if bias is None else bias.shape[0])
    rows = [
        row
        for row in table_rows(config.num_hidden_layers)
        if stacked_name(row.ours)[0] in params or row.ours in params
    ]
    known = {row.ours: _tensor(row.ours, row.shape(sizes), params, where) for row in rows}
    scopes = {row.ours.split("/")[0] for row in table_rows(1)}
    own = {name: array for name, array in params.items() if name.split("/")[0] not in scopes}
    return known | {
        name: Tensor(array.shape, array.dtype, lambda array=array: array)
        for name, array in own.items()
    }


def write_run(weights: Weights, directory: Path, dtype: str) -> Weights:
    """Write a directory laid out as a run's, as far as a model goes: `--init_from` reads it.

    Args:
      directory: exists and is empty.
      dtype: float32, which parameters have here.

    Raises:
      UserError: another dtype.
    """
    if dtype != "float32":
        raise UserError(f"--dtype={dtype}: parameters are float32 here")
    config = weights.config
    sizes = axis_sizes(config, weights.labels) | {"V": config.padded_vocab_size}
    like: dict[str, jax.ShapeDtypeStruct] = {}
    for row in weights.rows():
        name, layer = stacked_name(row.ours)
        depth = () if layer is None else (config.num_hidden_layers,)
        like[name] = jax.ShapeDtypeStruct((*depth, *row.shape(sizes)), np.float32)
    for name, tensor in weights.own.items():
        like[name] = jax.ShapeDtypeStruct(tensor.shape, np.float32)
    params, _ = load_params(weights, unflatten_dict(like, sep="/"))
    checkpoints = Checkpoints(directory, keep=1)
    checkpoints.save({"params": params}, 0, {})
    checkpoints.close()
    content = {
        "model": dataclasses.asdict(config),
        "data": {"next_sentence": weights.next_sentence},
        "architecture": weights.architecture,
        "head_fields": dict(weights.head_fields),
    }
    write_json(directory / CONFIG, content)
    if weights.tokenizer:
        weights.tokenizer.save(directory / TOKENIZER)
    return weights


def _newest_params(folder: Path) -> tuple[int, dict[str, np.ndarray], list[str]]:
    """Step and parameters, by path, of the newest whole checkpoint; the damages of newer ones."""
    damages = []
    for step in reversed(saved_steps(folder)):
        checkpoint = folder / str(step)
        try:
            seal = read_seal(checkpoint)
            check_files(checkpoint, seal["files"])
            return step, _read_params(checkpoint, seal["arrays"]), damages
        except Damage as damage:
            damages.append(f"{checkpoint} is damaged: {damage}")
    raise UserError(f"{folder}: has no whole checkpoint{'; '.join(['', *damages])}")


def _read_params(checkpoint: Path, arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    tree = unflatten_dict(
        {
            name: jax.ShapeDtypeStruct(tuple(facts["shape"]), np.dtype(facts["dtype"]))
            for name, facts in arrays.items()
            if name.startswith("params/")
        },
        sep="/",
    )
    arguments = ocp.args.PyTreeRestore(
        item=tree,
        restore_args=jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree),
        partial_restore=True,
    )
    try:
        restored = ocp.PyTreeCheckpointer().restore(checkpoint.absolute(), args=arguments)
    except Exception as error:  # the library raises nothing narrower
        raise Damage(first_line(error)) from error
    params: dict[str, Any] = dict(flatten_dict(restored, sep="/"))
    for name, array in params.items():
        if f"{int(fingerprint(array)):08x}" != arrays[name]["fingerprint"]:
            raise Damage(f"{name} is not what was saved")
    return {name.removeprefix("params/"): array for name, array in params.items()}


def _tensor(
    name: str, shape: tuple[int, ...], params: Mapping[str, np.ndarray], where: str
) -> Tensor:
    """A parameter of the table, from a tree that may be stacked and padded."""
    stacked, layer = stacked_name(name)
    array = params[name] if name in params else params[stacked][layer]
    if name in VOCABULARY:
        array = array[: shape[0]]
    if array.shape != shape:
        raise UserError(
            f"{where}: {name} is {list(array.shape)} in the checkpoint and {list(shape)} here"
        )
    return Tensor(shape, array.dtype, lambda: array)


def _check_depth(params: Mapping[str, np.ndarray], depth: int, where: Path) -> None:
    numbers = [stacked_name(name)[1] for name in params]
    layers = [number for number in numbers if number is not None]
    stacks = [array for name, array in params.items() if name.startswith("bert/encoder/layer/")]
    found = len(stacks[0]) if stacks else max(layers, default=-1) + 1
    if found != depth:
        raise UserError(f"{where}: num_hidden_layers is {depth}, and the checkpoint has {found}")


def _facts(directory: Path, step: int) -> dict[str, Any]:
    """What a model card tells of a run."""
    config, of_text = read_config(directory), read_fingerprint(directory)
    try:
        manifest = read_manifest(Path(config.data.dir))
        text = manifest.source if manifest.fingerprint == of_text else None
    except UserError:  # the shards are elsewhere by now
        text = None
    scores = [
        record
        for record in read_metrics(directory)
        if record["kind"] == "eval" and record["step"] <= step
    ]
    return {
        "config": dataclasses.asdict(config),
        "text": text or f"token shards {of_text}",
        "step": step,
        "scores": scores[-1] if scores else {},
    }
