"""Hugging Face directories: config.json, model.safetensors, tokenizer files and a model card."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.data.tokenization import Tokenizer, load_tokenizer
from bert_jax.errors import UserError, first_line
from bert_jax.interop.model_card import model_card
from bert_jax.interop.names import CLASSIFIER, PARTS, POOLER, Row, Stored
from bert_jax.interop.safetensors_files import read_safetensors, write_safetensors
from bert_jax.interop.weights import (
    DTYPES,
    Matched,
    Tensor,
    Weights,
    match_names,
    stored_tensors,
)
from bert_jax.models.config_json import bert_config_from_json, bert_config_to_json
from bert_jax.training.run_files import read_json, write_json
from bert_jax.training.stopping import ending_at_signals

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
# The head of a task that transformers has no class for; it reads the encoder beside it.
OWN_HEAD = "head.safetensors"
_MAX_JSON = 64 << 20
_HEAD_FIELDS = ("id2label", "label2id", "num_labels", "problem_type", "classifier_dropout")
# Heads that share the word embeddings and their own bias, and are written once or twice.
_TIED = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
_BUFFERS = re.compile(r"(bert\.)?embeddings\.(position_ids|token_type_ids)")
_SAFE_FILES = ["*.json", "*.txt", "*.model", "*.safetensors"]
_TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "spiece.model", "*.model")


def read_huggingface(directory: Path) -> Weights:
    """The model in a directory, its tensors unread.

    Raises:
      UserError: there is no config or no safetensors file; another architecture; weights that
        disagree with the config, with the vocabulary, or between tied tensors.
    """
    where = directory / CONFIG
    fields = read_json(where, _MAX_JSON)
    if fields is None:
        raise UserError(f"{directory}: has no {CONFIG}, which says what model its weights are of")
    config = bert_config_from_json(fields, str(where))
    named = _named(fields)
    stored, dropped = _known_names(_read_tensors(directory, named), directory)
    matched = match_names(stored, config, huggingface_name, named, str(directory))
    _check_labels(fields, matched, where)
    own = read_safetensors(directory / OWN_HEAD) if (directory / OWN_HEAD).exists() else {}
    return Weights(
        source=str(directory),
        form="Hugging Face",
        config=config,
        architecture=matched.architecture,
        tensors={**own, **matched.tensors},
        tokenizer=_read_tokenizer(directory),
        vocab=directory,
        head_fields={name: fields[name] for name in _HEAD_FIELDS if name in fields},
        missing=matched.missing,
        left_over=matched.left_over,
        dropped=dropped,
    )


def write_huggingface(weights: Weights, directory: Path, dtype: str) -> Weights:
    """Write what `transformers` loads, by AutoModel and the class of the architecture.

    Args:
      directory: exists and is empty.
      dtype: a key of `DTYPES`, of all tensors.

    Returns:
      `weights`, with a note of a pooler that the class of the architecture does not have.
    """
    fields = bert_config_to_json(weights.config, weights.architecture)
    choice = weights.architecture == "BertForMultipleChoice"  # one output, and no labels
    if weights.labels != 2 and not choice and "id2label" not in weights.head_fields:
        names = [f"LABEL_{index}" for index in range(weights.labels)]
        fields["id2label"] = {str(index): name for index, name in enumerate(names)}
        fields["label2id"] = {name: index for index, name in enumerate(names)}
    if weights.tokenizer:  # it knows; the config of a run says 0 whatever the vocabulary
        fields["pad_token_id"] = weights.tokenizer.pad_id
    write_json(directory / CONFIG, fields | dict(weights.head_fields) | {"dtype": dtype})
    tensors = stored_tensors(weights, huggingface_name, DTYPES[dtype])
    if weights.architecture == "BertModel":
        tensors = {name.removeprefix("bert."): tensor for name, tensor in tensors.items()}
    write_safetensors(directory / WEIGHTS, tensors)
    if weights.own:
        write_safetensors(directory / OWN_HEAD, weights.own)
    if weights.tokenizer:
        weights.tokenizer.save(directory, weights.config.max_position_embeddings)
    # Paths that are not UTF-8 are told with question marks.
    (directory / "README.md").write_text(model_card(weights), encoding="utf-8", errors="replace")
    if weights.next_sentence and POOLER not in PARTS[weights.architecture]:
        note = (
            f"its pooler is there for AutoModel, and {weights.architecture}, which has none, will "
            f"call it unexpected; --architecture={weights.architecture} leaves it out"
        )
        return replace(weights, notes=(*weights.notes, note))
    return weights


def huggingface_name(row: Row) -> Stored:
    """The column of the table of names that Hugging Face's files go by."""
    return row.huggingface


def _read_tokenizer(directory: Path) -> Tokenizer | None:
    if not any(path for name in _TOKENIZER_FILES for path in directory.glob(name)):
        return None
    return load_tokenizer(directory)


def download(name: str) -> Path:
    """The directory of a model of the hub, fetched or from the cache; no pickle is fetched.

    Raises:
      UserError: it cannot be fetched or is no model, or `huggingface_hub` is not installed.
    """
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise UserError(
            f"{name}: no such file or directory, and to fetch a model of that name from the "
            "Hugging Face hub, huggingface_hub must be installed: pip install huggingface_hub"
        ) from error
    try:
        # It would wait for all that is on its way; what is whole stays in the cache.
        with ending_at_signals():
            fetched = snapshot_download(name, allow_patterns=_SAFE_FILES, ignore_patterns=["*/*"])
    except Exception as error:  # the library raises errors of four others
        # Without its cause: of several processes, one would wait to hear whether a peer was that.
        raise UserError(
            f"{name}: no such file or directory, and it could not be fetched from the Hugging Face "
            f"hub ({first_line(error, lines=2)}); give a directory, or check the name and the "
            "network; where it is private or gated, log in: hf auth login"
        ) from None
    directory = Path(fetched)
    if not (directory / CONFIG).exists():
        raise UserError(f"{name}: the Hugging Face hub has no {CONFIG} of it, so it is no model")
    if not any(directory.glob("*.safetensors")):
        named = _named(read_json(directory / CONFIG, _MAX_JSON) or {})
        raise UserError(
            f"{name}: the Hugging Face hub has no safetensors of it, and a pickle, which runs code "
            f"when it is read, is not fetched; {_trusted(repr(name), named)}"
        )
    return directory


def _named(fields: Mapping[str, Any]) -> str | None:
    """The architecture that a config names first, if it does."""
    architectures = fields.get("architectures")
    return str(architectures[0]) if isinstance(architectures, list) and architectures else None


def _trusted(source: str, named: str | None) -> str:
    """How to make of a pickle what is read here; the class keeps the head that is there."""
    return (
        f"where you trust it, make {WEIGHTS} of it with transformers: "
        f"{named or 'BertForPreTraining'}.from_pretrained({source}).save_pretrained(NEW_DIR)"
    )


def _check_labels(fields: Mapping[str, Any], matched: Matched, where: Path) -> None:
    """Check that a classifier has an output for each label of the config."""
    bias, names = matched.tensors.get(f"{CLASSIFIER}/bias"), fields.get("id2label")
    if bias is None or names is None or matched.architecture == "BertForMultipleChoice":
        return
    count = bias.shape[0]
    if not isinstance(names, dict) or names.keys() != {str(index) for index in range(count)}:
        raise UserError(
            f"{where}: id2label must name the {count} labels of the classifier by 0 to "
            f"{count - 1}, and is {str(names)[:80]}"
        )


def _read_tensors(directory: Path, named: str | None) -> dict[str, Tensor]:
    """The tensors of a directory, whose config names an architecture or none."""
    if (directory / WEIGHTS).is_file():
        return read_safetensors(directory / WEIGHTS)
    index = read_json(directory / INDEX, _MAX_JSON)
    if index is not None:
        return _read_sharded(directory, index)
    if list(directory.glob("pytorch_model*.bin")):
        raise UserError(
            f"{directory}: its weights are pytorch_model.bin, a pickle, which runs code when it is "
            f"read; {_trusted('DIR', named)}"
        )
    raise UserError(f"{directory}: has no {WEIGHTS}")


def _read_sharded(directory: Path, index: dict[str, Any]) -> dict[str, Tensor]:
    """The tensors of several files, as an index tells them."""
    where, places = directory / INDEX, index.get("weight_map")
    if not isinstance(places, dict) or not all(type(file) is str for file in places.values()):
        raise UserError(f"{where}: weight_map must give the file of each tensor")
    tensors: dict[str, Tensor] = {}
    for file in sorted(set(places.values())):
        if not re.fullmatch(r"[\w-][\w.-]*\.safetensors", file):
            raise UserError(f"{where}: {file!r} is not the name of a safetensors file beside it")
        if not (directory / file).exists():
            raise UserError(f"{where}: {file}, which it names, is missing; fetch it too")
        for name, tensor in read_safetensors(directory / file).items():
            if places.get(name) != file:
                raise UserError(f"{where}: {name} is in {file}, and the index doesn't say so")
            tensors[name] = tensor
    lost = sorted(places.keys() - tensors.keys())
    if lost:
        raise UserError(f"{where}: {lost[0]} is not in {places[lost[0]]}")
    return tensors


def _known_names(
    stored: Mapping[str, Tensor], directory: Path
) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """The tensors under today's names, without those that only repeat what others hold."""
    renamed: dict[str, Tensor] = {}
    dropped = []
    for name, tensor in stored.items():
        if _BUFFERS.fullmatch(name):
            dropped.append(f"{name} (a buffer, not a weight)")
            continue
        new = _today(name)
        if new in renamed:
            raise UserError(f"{directory}: has {new} under two names, one of them {name}")
        renamed[new] = tensor
    for copy, original in _TIED.items():
        if copy not in renamed:
            continue
        tensor = renamed.pop(copy)
        if original not in renamed:
            renamed[original] = tensor
        elif _same(tensor, renamed[original]):
            dropped.append(f"{copy} (the same as {original})")
        else:
            raise UserError(
                f"{directory}: {copy} differs from {original}: here they are one tensor, and a "
                "model that learnt them apart is not supported"
            )
    return renamed, tuple(dropped)


def _today(name: str) -> str:
    """The name as today's BertForPreTraining has it."""
    name = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))
    return f"bert.{name}" if re.match(r"(embeddings|encoder|pooler)\.", name) else name


def _same(tensor: Tensor, other: Tensor) -> bool:
    if (tensor.shape, tensor.dtype) != (other.shape, other.dtype):
        return False
    return np.array_equal(tensor.read().view(np.uint8), other.read().view(np.uint8))
