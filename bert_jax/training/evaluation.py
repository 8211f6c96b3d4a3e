"""Scoring the held-out documents: exact sums over all examples, divided once."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from bert_jax.training.objective import Metrics
from bert_jax.training.sharding import shard_batch


def mean_metrics(totals: Iterable[Metrics]) -> dict[str, float]:
    """Means over batches of metrics given as (sum, weight), added in float64.

    A metric of no weight (an epoch without a single pair, say) is left out.
    """
    sums: dict[str, np.ndarray] = {}
    for metrics in jax.device_get(list(totals)):
        for name, pair in metrics.items():
            sums[name] = sums.get(name, np.zeros(2)) + np.asarray(pair, np.float64)
    return {name: float(pair[0] / pair[1]) for name, pair in sums.items() if pair[1] > 0}


def evaluate(
    eval_step: Callable[[Any, Any], Metrics],
    params: Any,
    batches: Iterable[Mapping[str, np.ndarray]],
    mesh: Mesh,
) -> dict[str, float]:
    """The means of the metrics over all examples of `batches`, and MLM perplexity."""
    totals: list[Metrics] = []
    for batch in batches:
        totals.append(eval_step(params, shard_batch(mesh, batch)))
        jax.block_until_ready(totals[-2:][0])  # the host is not to run ahead
    means = mean_metrics(totals)
    # exp overflows a float64 beyond 709; a loss that large has no perplexity worth telling.
    return means | {"mlm_perplexity": math.exp(min(means["mlm_loss"], 700.0))}
