"""The table of names is that of our tree, of transformers and of the original, without a rest."""

import dataclasses
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from flax.traverse_util import flatten_dict
from peer_models import ARCHITECTURES, peer

from bert_jax.interop.names import PARTS, Stored, axis_sizes, table_rows
from bert_jax.models import BertConfig, BertForPreTraining

CONFIG = BertConfig(
    vocab_size=44,
    hidden_size=32,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=48,
    max_position_embeddings=40,
    vocab_multiple=1,
)
ENCODER = {"bert/embeddings", *(f"bert/encoder/layer_{i}" for i in range(3))}


def rows_of(architecture: str) -> list:
    kept = PARTS[architecture]
    return [row for row in table_rows(3) if row.scope.startswith("bert/e") or row.scope in kept]


def test_every_parameter_of_the_model_stands_in_the_table_once():
    ids = jnp.zeros((1, 8), jnp.int32)
    model = BertForPreTraining(dataclasses.replace(CONFIG))
    tree = jax.eval_shape(model.init, jax.random.key(0), ids, ids, ids, ids)["params"]
    leaves: dict[str, Any] = dict(flatten_dict(nn.unbox(tree), sep="/"))
    shapes = {name: leaf.shape for name, leaf in leaves.items()}
    rows = rows_of("BertForPreTraining")
    assert len({row.ours for row in rows}) == len(rows)
    assert {row.ours: row.shape(axis_sizes(CONFIG, 2)) for row in rows} == shapes


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_tensor_of_transformers_stands_in_the_table_once(architecture):
    labels = 1 if architecture == "BertForMultipleChoice" else 3
    sizes = axis_sizes(CONFIG, labels)
    expected = {}
    for row in rows_of(architecture):
        shape = row.matrix_shape(sizes)
        expected[row.huggingface.name] = shape[::-1] if row.huggingface.transposed else shape
    theirs = {name: tuple(p.shape) for name, p in peer(architecture).named_parameters()}
    if architecture == "BertModel":
        theirs = {f"bert.{name}": shape for name, shape in theirs.items()}
    assert theirs == expected


def test_googles_names_and_shapes_are_the_originals():
    # modeling.py, run_pretraining.py, run_classifier.py and run_squad.py, read by hand.
    sizes = axis_sizes(CONFIG, 3)
    names = {}
    for row in table_rows(1):
        shape = row.matrix_shape(sizes)
        names[row.google.name] = shape[::-1] if row.google.transposed else shape
    layer, norms = "bert/encoder/layer_0", {"gamma": (32,), "beta": (32,)}
    dense = {
        **{f"{layer}/attention/self/{name}": (32, 32) for name in ("query", "key", "value")},
        f"{layer}/attention/output/dense": (32, 32),
        f"{layer}/intermediate/dense": (32, 48),
        f"{layer}/output/dense": (48, 32),
        "bert/pooler/dense": (32, 32),
        "cls/predictions/transform/dense": (32, 32),
    }
    norm_scopes = (
        "bert/embeddings",
        f"{layer}/attention/output",
        f"{layer}/output",
        "cls/predictions/transform",
    )
    assert names == {
        "bert/embeddings/word_embeddings": (44, 32),
        "bert/embeddings/position_embeddings": (40, 32),
        "bert/embeddings/token_type_embeddings": (2, 32),
        **{f"{s}/LayerNorm/{name}": shape for s in norm_scopes for name, shape in norms.items()},
        **{f"{scope}/kernel": shape for scope, shape in dense.items()},
        **{f"{scope}/bias": shape[1:] for scope, shape in dense.items()},
        "cls/predictions/output_bias": (44,),
        "cls/seq_relationship/output_weights": (2, 32),
        "cls/seq_relationship/output_bias": (2,),
        "output_weights": (3, 32),
        "output_bias": (3,),
        "cls/squad/output_weights": (2, 32),
        "cls/squad/output_bias": (2,),
    }


def test_the_documented_table_is_this_one():
    lines = (Path(__file__).parents[2] / "docs/checkpoints.md").read_text().splitlines()
    cells = [line.replace("`", "").split(" | ") for line in lines if line.startswith("| `")]

    def shown(stored: Stored) -> str:
        return stored.name + (" (T)" if stored.transposed else "")

    documented = [
        [cell.strip("| ").replace("{i}", "2") for cell in row] for row in cells if "/" in row[0]
    ]
    rows = [row for row in table_rows(3) if "layer_0" not in row.ours and "layer_1" not in row.ours]
    assert documented == [
        [
            row.ours,
            ", ".join(" ".join(group) for group in row.axes),
            shown(row.huggingface),
            shown(row.google),
        ]
        for row in rows
    ]
