"""Means over the batches of an evaluation."""

import math

import jax
import numpy as np

from bert_jax.config import MeshConfig
from bert_jax.training.evaluation import evaluate, mean_metrics
from bert_jax.training.objective import Metrics
from bert_jax.training.sharding import make_mesh


def metrics(**pairs: tuple[float, float]) -> Metrics:
    return {name: (jax.numpy.float32(s), jax.numpy.float32(w)) for name, (s, w) in pairs.items()}


def test_small_batches_count_beside_what_float32_could_not_add_them_to():
    totals = [metrics(loss=(2**24, 2**24)), *[metrics(loss=(1, 0))] * 64]
    assert mean_metrics(totals) == {"loss": (2**24 + 64) / 2**24}


def test_a_batch_counts_by_its_weight():
    assert mean_metrics([metrics(loss=(6, 3)), metrics(loss=(1, 1))]) == {"loss": 7 / 4}


def test_what_has_no_weight_has_no_mean():
    assert mean_metrics([metrics(mlm_loss=(6, 3), nsp_loss=(0, 0))]) == {"mlm_loss": 2}


def test_a_loss_beyond_all_perplexities_is_told():
    mesh = make_mesh(MeshConfig())
    batches = [{"input_ids": np.zeros((8, 4), np.int32)}] * 3
    found = evaluate(lambda *_: metrics(mlm_loss=(4000, 4)), None, batches, mesh)
    assert found["mlm_loss"] == 1000
    assert math.isfinite(found["mlm_perplexity"])
