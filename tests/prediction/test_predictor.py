"""What all predictors do with a model."""

import dataclasses
import sys

import jax
import jax.numpy as jnp
import numpy as np
from peer_models import PIECES, peer, save_peer

from bert_jax import predict
from bert_jax.interop import load_weights
from bert_jax.models import BertForPreTraining
from bert_jax.prediction.predictor import needed_params, unrolled


def test_kernels_are_cast_once_and_change_no_bit(tmp_path):
    weights = load_weights(save_peer(peer("BertForPreTraining"), tmp_path / "model"))
    config = unrolled(weights.config)
    fast = BertForPreTraining(dataclasses.replace(config, dtype="bfloat16"))
    ids = np.arange(24, dtype=np.int32).reshape(2, 12)
    inputs = (ids, ids % 2, np.ones_like(ids), ids[:, :3] % 12)
    cast = needed_params(weights, fast, inputs[3][:1])
    dtypes = {
        "/".join(entry.key for entry in path[2:]): leaf.dtype
        for path, leaf in jax.tree_util.tree_leaves_with_path(cast)
    }
    assert {name for name, dtype in dtypes.items() if dtype == jnp.bfloat16} == {
        name for name in dtypes if name.startswith("layer_") and name.endswith("/kernel")
    }
    assert len(dtypes) > sum(dtype == jnp.bfloat16 for dtype in dtypes.values()) > 0
    whole = needed_params(weights, BertForPreTraining(config), inputs[3][:1])
    answers = [jax.jit(fast.apply)({"params": params}, *inputs) for params in (cast, whole)]
    jax.tree.map(np.testing.assert_array_equal, *answers)


def test_what_is_odd_of_a_model_is_told(monkeypatch, capsys, tmp_path):
    model = save_peer(peer("BertModel"), tmp_path / "model")
    (model / "vocab.txt").write_text("\n".join(PIECES[:-3]) + "\n")
    monkeypatch.setattr(sys, "argv", ["predict", "embed", str(model), "a river"])
    predict.main()
    said = f"{model}: 3 rows of the embedding have no piece in the vocabulary\n"
    assert capsys.readouterr().err.endswith(said)
