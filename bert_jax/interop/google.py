"""Google's TF1 checkpoints: bert_config.json, vocab.txt and bert_model.ckpt.*.

TensorFlow is imported where a checkpoint is read or written, and nowhere else.
"""

import re
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.data.quiet_tensorflow import load_tensorflow
from bert_jax.data.tokenization import Tokenizer, load_tokenizer
from bert_jax.errors import UserError, first_line
from bert_jax.interop.names import CLASSIFIER, Row, Stored
from bert_jax.interop.weights import DTYPES, Tensor, Weights, match_names, stored_tensors
from bert_jax.models.config_json import bert_config_from_json
from bert_jax.training.run_files import read_json, write_json

CONFIG, VOCAB, CHECKPOINT = "bert_config.json", "vocab.txt", "bert_model.ckpt"
_MAX_JSON = 1 << 20
# What the original's config has, in bert_config.json.
_FIELDS = (
    "attention_probs_dropout_prob",
    "hidden_act",
    "hidden_dropout_prob",
    "hidden_size",
    "initializer_range",
    "intermediate_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "type_vocab_size",
    "vocab_size",
)
_LAYER_NORM_EPS = 1e-12  # modeling.py, `layer_norm`: the default of tf.contrib.layers
_OBJECTS = "_CHECKPOINTABLE_OBJECT_GRAPH"  # of TF2
# The original's own optimizer (optimization.py), and the counter of its steps.
_SLOTS = re.compile(r".*/adam_[mv]|global_step")


def read_google(path: Path) -> Weights:
    """The model in a directory, or of the checkpoint whose prefix (`.../bert_model.ckpt`) it is.

    Raises:
      UserError: a file is missing, several checkpoints to choose from, weights that disagree with
        the config.
    """
    prefix = _prefix(path)
    where = prefix.parent / CONFIG
    fields = read_json(where, _MAX_JSON)
    if fields is None:
        raise UserError(f"{prefix.parent}: has no {CONFIG}, which says what its weights are of")
    # "gelu" in the original is the tanh form, which transformers calls gelu_new.
    if fields.get("hidden_act", "gelu") == "gelu":
        fields = fields | {"hidden_act": "gelu_new"}
    config = bert_config_from_json(fields, str(where))
    stored = _read_checkpoint(prefix)
    weights = {name: tensor for name, tensor in stored.items() if not _SLOTS.fullmatch(name)}
    matched = match_names(weights, config, google_name, None, str(prefix))
    slots, vocab = len(stored) - len(weights), prefix.parent / VOCAB
    return Weights(
        source=str(path),
        form="Google",
        config=config,
        architecture=matched.architecture,
        tensors=matched.tensors,
        tokenizer=load_tokenizer(vocab) if vocab.is_file() else None,
        vocab=vocab,
        missing=matched.missing,
        left_over=matched.left_over,
        dropped=(f"{slots} optimizer slots (adam_m, adam_v, global_step)",) if slots else (),
    )


def write_google(weights: Weights, directory: Path, dtype: str) -> Weights:
    """Write what the original code reads.

    Args:
      directory: exists and is empty.
      dtype: a key of `DTYPES`; the original code reads float32 alone.

    Returns:
      `weights` with a note of what the format cannot say.

    Raises:
      UserError: a head that the original has no name for; a vocabulary that is not WordPiece.
    """
    other = ("BertForTokenClassification", "BertForMultipleChoice")
    if CLASSIFIER in {row.scope for row in weights.rows()} and weights.architecture in other:
        raise UserError(
            f"{weights.source}: Google's code has no {weights.architecture}, so no name for its "
            "head; convert it with --to=hf"
        )
    if weights.own:
        raise UserError(
            f"{weights.source}: Google's code has no name for {min(weights.own)}; convert it with "
            "--to=hf"
        )
    config = weights.config
    fields: dict[str, Any] = {name: getattr(config, name) for name in _FIELDS}
    notes = []
    if config.hidden_act == "gelu":
        notes.append(
            "Google's code computes the tanh form of GELU, and this model has the erf form: "
            "there its outputs differ in the third or fourth digit"
        )
    if config.hidden_act == "gelu_new":
        fields["hidden_act"] = "gelu"
    if config.layer_norm_eps != _LAYER_NORM_EPS:
        notes.append(
            f"Google's code has {_LAYER_NORM_EPS:g} for the epsilon of LayerNorm, and this model "
            f"{config.layer_norm_eps:g}"
        )
    lost = [name for name, value in weights.head_fields.items() if value is not None]
    if lost:
        labels = ": labels lose their names there" if "id2label" in lost else ""
        notes.append(f"Google's files have no place for {', '.join(lost)}{labels}")
    write_json(directory / CONFIG, fields)
    if weights.tokenizer:
        _write_vocab(weights.tokenizer, directory / VOCAB)
        if not _is_read_alike(weights.tokenizer, directory / VOCAB):
            notes.append(
                "Google's files hold the pieces alone, not what else this vocabulary says (lower "
                "case, accents, names of special pieces): text is cut otherwise by them"
            )
    _write_checkpoint(directory / CHECKPOINT, stored_tensors(weights, google_name, DTYPES[dtype]))
    return replace(weights, notes=(*weights.notes, *notes))


def google_name(row: Row) -> Stored:
    """The column of the table of names that Google's checkpoints go by."""
    return row.google


def _prefix(path: Path) -> Path:
    if not path.is_dir():
        return path.with_name(path.name.removesuffix(".index"))
    found = sorted(path.glob("*.ckpt*.index")) or sorted(path.glob("*.index"))
    if not found:
        raise UserError(f"{path}: has no checkpoint: {CHECKPOINT}.index is not there")
    if len(found) > 1:
        raise UserError(
            f"{path}: has {len(found)} checkpoints; give the name of one, as {found[-1].name}"
        )
    return found[0].with_suffix("")


def _write_vocab(tokenizer: Tokenizer, path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        tokenizer.save(folder)
        written = Path(folder, VOCAB)
        if not written.is_file():
            raise UserError(
                "Google's code reads WordPiece vocabularies, and this one is SentencePiece's; "
                "convert it with --to=hf"
            )
    # All pieces, those too that stand beside the vocabulary elsewhere.
    lines = "".join(f"{piece}\n" for piece in tokenizer.pieces)
    path.write_text(lines, encoding="utf-8", newline="\n")


def _is_read_alike(tokenizer: Tokenizer, vocab: Path) -> bool:
    """Whether a bare vocab.txt gives the same ids as the vocabulary that it was written from."""
    try:
        return load_tokenizer(vocab).digest == tokenizer.digest
    except UserError:  # special pieces of other names
        return False


def _read_checkpoint(prefix: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint, by name.

    Raises:
      UserError: a file of it is missing or damaged, or its path is one that TensorFlow misreads.
    """
    tf = load_tensorflow()
    index = prefix.with_name(prefix.name + ".index")
    if not index.is_file():
        raise UserError(f"{index}: no such file: it is the list of a checkpoint's tensors")
    if "[" in str(prefix) or "\\" in str(prefix):
        raise UserError(
            f"{index}: TensorFlow takes its path for a pattern; move it to one without [ or \\"
        )
    _check_shards(prefix)
    try:
        reader = tf.train.load_checkpoint(str(prefix))
        shapes = reader.get_variable_to_shape_map()
        dtypes = reader.get_variable_to_dtype_map()
    except (tf.errors.OpError, RuntimeError, ValueError) as error:
        raise UserError(f"{index}: cannot be read ({first_line(error)}); fetch it again") from error
    if _OBJECTS in shapes and not any(name.startswith("bert/") for name in shapes):
        raise UserError(
            f"{prefix}: a checkpoint of TF2, which names variables by the objects of the program "
            "that wrote it; fetch the TF1 one of the model, or its Hugging Face directory"
        )

    def reading(name: str) -> Callable[[], np.ndarray]:
        def read() -> np.ndarray:
            try:
                return np.asarray(reader.get_tensor(name))
            except Exception as error:
                raise UserError(
                    f"{prefix}: {name} cannot be read ({first_line(error)}); fetch it again"
                ) from error

        return read

    return {
        name: Tensor(tuple(shape), np.dtype(dtypes[name].as_numpy_dtype), reading(name))
        for name, shape in shapes.items()
        if dtypes[name] != tf.string  # bookkeeping of TF2 checkpoints
    }


def _check_shards(prefix: Path) -> None:
    """Check that all data files are there: each says how many there must be."""
    pattern = re.compile(re.escape(prefix.name) + r"\.data-(\d{5})-of-(\d{5})")
    found = [match for path in prefix.parent.iterdir() if (match := pattern.fullmatch(path.name))]
    if not found:
        raise UserError(
            f"{prefix}: its data is missing: there is no {prefix.name}.data-00000-of-00001"
        )
    count = found[0][2]
    present = {match[1] for match in found if match[2] == count}
    lost = [number for number in range(int(count)) if f"{number:05d}" not in present]
    if lost:
        names = ", ".join(f"{prefix.name}.data-{number:05d}-of-{count}" for number in lost[:5])
        raise UserError(f"{prefix}: {len(lost)} of its {int(count)} data files missing: {names}")


def _write_checkpoint(prefix: Path, tensors: dict[str, Tensor]) -> None:
    tf = load_tensorflow()
    names = sorted(tensors)
    with tf.device("cpu"):
        arrays = [tf.constant(np.ascontiguousarray(tensors[name].read())) for name in names]
        tf.raw_ops.SaveV2(
            prefix=str(prefix),
            tensor_names=names,
            shape_and_slices=[""] * len(names),
            tensors=arrays,
        )
