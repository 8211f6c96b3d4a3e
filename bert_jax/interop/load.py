"""Any source of weights to `Weights`, and changes of its size and of its heads."""

import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from bert_jax.errors import UserError
from bert_jax.interop.google import CONFIG as GOOGLES_CONFIG
from bert_jax.interop.google import read_google
from bert_jax.interop.huggingface import CONFIG, download, read_huggingface
from bert_jax.interop.names import PARTS
from bert_jax.interop.runs import CHECKPOINTS, model_directory, read_run
from bert_jax.interop.weights import Tensor, Weights

_POSITIONS = "bert/embeddings/position_embeddings"


def load_weights(source: str | Path) -> Weights:
    """The model at `source`, its tensors unread.

    Args:
      source: a Hugging Face directory, or the name of a model of its hub; a directory of Google's,
        or the prefix of a checkpoint there; a run directory of this package: of pretraining, the
        newest whole checkpoint; of fine-tuning, its model/, which is then the weights' `source`.

    Raises:
      UserError: none of these, one that is damaged or contradicts itself, or a fine-tuning run that
        is not finished.
    """
    path = Path(os.path.expanduser(source))
    if path.is_dir():
        path = model_directory(path)
        weights = _reader(path)(path)
    elif path.with_name(path.name.removesuffix(".index") + ".index").is_file():
        weights = read_google(path)
    elif not path.exists() and re.fullmatch(r"[\w.-]+(/[\w.-]+)?", str(source)):
        weights = read_huggingface(download(str(source)))
    elif path.is_file():
        raise UserError(
            f"{source}: is a file; give its directory, or the prefix of a TF1 checkpoint, as "
            "bert_model.ckpt"
        )
    else:
        raise UserError(f"{source}: no such directory, checkpoint or name of a model")
    return _with_checked_vocabulary(weights)


def resized(weights: Weights, max_position_embeddings: int) -> Weights:
    """The model for sequences of at most `max_position_embeddings` pieces.

    Rows beyond are cut. Rows that are wanted beyond repeat the table from its start, so that
    position 512 begins as position 0 did: neighbours stay what they were, and training on long
    text finds the rest (Beltagy et al., 2020, "Longformer", section 5).
    """
    table = weights.tensors[_POSITIONS]

    def read() -> np.ndarray:
        return np.resize(table.read(), shape)

    shape = (max_position_embeddings, table.shape[1])
    return replace(
        weights,
        config=replace(weights.config, max_position_embeddings=max_position_embeddings),
        tensors={**weights.tensors, _POSITIONS: Tensor(shape, table.dtype, read)},
    )


def reduced(weights: Weights, architecture: str) -> Weights:
    """The model with no heads but those of `architecture`, a key of `names.PARTS`.

    Raises:
      UserError: it lacks one of them.
    """
    scopes = {row.scope for row in weights.rows()}
    lacking = sorted(PARTS[architecture] - scopes)
    if lacking:
        raise UserError(
            f"{weights.source}: is a {weights.architecture} and has no {', '.join(lacking)}, which "
            f"a {architecture} has"
        )
    others = set().union(*PARTS.values()) - PARTS[architecture]
    kept = {
        row.ours: weights.tensors[row.ours] for row in weights.rows() if row.scope not in others
    }
    heads = {name.split("/")[0] for name in weights.own}  # that the table does not have
    dropped = [f"{scope} (not of a {architecture})" for scope in sorted(scopes & others | heads)]
    return replace(
        weights,
        architecture=architecture,
        tensors=kept,
        dropped=(*weights.dropped, *dropped),
    )


def _reader(directory: Path) -> Callable[[Path], Weights]:
    """What reads a directory: it is known by its files."""
    if any(directory.glob("*.safetensors*")):  # with its Trainer's checkpoints beside it, maybe
        return read_huggingface
    if (directory / CHECKPOINTS).is_dir():
        return read_run
    # Without the index too, where the config is Google's alone.
    config = (directory / GOOGLES_CONFIG).exists() and not (directory / CONFIG).exists()
    return read_google if config or any(directory.glob("*.index")) else read_huggingface


def _with_checked_vocabulary(weights: Weights) -> Weights:
    rows = weights.config.vocab_size
    tokenizer = weights.tokenizer
    if tokenizer is None:
        return replace(weights, notes=(*weights.notes, "the source has no vocabulary"))
    pieces = tokenizer.vocab_size
    if pieces > rows:
        raise UserError(
            f"{weights.source}: its vocabulary has {pieces} pieces and its embedding {rows} rows: "
            "they are not of one model"
        )
    if pieces < rows:
        note = f"{rows - pieces} rows of the embedding have no piece in the vocabulary"
        weights = replace(weights, notes=(*weights.notes, note))
    if tokenizer.other_pair:
        note = (
            f"its tokenizer.json puts pairs of texts between {tokenizer.other_pair}; here, "
            "and in what is written, they are [CLS] A [SEP] B [SEP] of the token types 0 and 1"
        )
        weights = replace(weights, notes=(*weights.notes, note))
    return weights
