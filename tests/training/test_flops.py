"""FLOPs a token against published figures and against a count product by product."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from bert_jax.config import BertConfig, Phase, model_size
from bert_jax.planning.hlo import flops
from bert_jax.tasks.classification import Classification
from bert_jax.tasks.question_answering import QuestionAnswering
from bert_jax.tasks.tagging import Tagging
from bert_jax.training.flops import (
    finetuning_flops_per_token,
    peak_flops,
    run_flops,
    step_flops,
    training_flops_per_token,
)
from bert_jax.training.rates import layer_rate, stop_gradients


def left_out(model: BertConfig, length: int, predictions: float) -> float:
    """Forward FLOPs of the last layer where nothing is read: all there but keys and values."""
    hidden, elsewhere = model.hidden_size, length - predictions
    projections = 2 * (2 * elsewhere * hidden * hidden)
    attention = 2 * (2 * elsewhere * length * hidden)
    return projections + attention + 2 * (2 * elsewhere * hidden * model.intermediate_size)


@pytest.mark.parametrize(
    ("size", "seq_len", "gigaflops"),
    [("base", 128, 0.545), ("base", 512, 0.588), ("large", 128, 1.879), ("large", 512, 1.992)],
)
def test_flops_per_token_of_published_sizes(size, seq_len, gigaflops):
    """Published for all of the last layer, of which we compute what is read."""
    model, predictions = model_size(size), 0.15 * seq_len
    flops = training_flops_per_token(model, seq_len, predictions)
    whole = flops + 3 * left_out(model, seq_len, predictions) / seq_len
    assert whole / 1e9 == pytest.approx(gigaflops, abs=5e-4)


def test_counts_every_matrix_product_of_a_small_model():
    """Two FLOPs a multiply-add, summed product by product; three times for the backward pass."""
    model = BertConfig(
        hidden_size=8,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=20,
        vocab_size=50,
    )
    length, predictions, hidden, heads = 16, 4, 8, 2
    projections = 4 * (2 * length * hidden * hidden)
    attention = 2 * heads * (2 * length * length * (hidden // heads))
    feed_forward = 2 * (2 * length * hidden * 20)
    head = 2 * predictions * hidden * hidden + 2 * predictions * hidden * 50
    forward = 3 * (projections + attention + feed_forward) + head
    computed = 3 * (forward - left_out(model, length, predictions))
    counted = training_flops_per_token(model, length, predictions) * length
    assert counted == pytest.approx(computed)


@pytest.mark.parametrize(
    ("task", "frozen_layers"),
    [
        (Classification(labels=("a", "b")), 0),
        (Classification(labels=("a", "b")), 2),
        (Classification(labels=("a", "b")), -1),
        (Tagging(labels=("O", "B-A", "I-A")), 0),
        (Tagging(labels=("O", "B-A", "I-A")), -1),
        (QuestionAnswering(), 0),
    ],
)
def test_counts_what_the_compiled_step_of_a_task_computes(task, frozen_layers):
    """But for the head, and that the first layer trained above frozen ones gives none its gradient.

    Of two sequences of 64.
    """
    sizes: Any = {"hidden_size": 64, "num_hidden_layers": 4, "intermediate_size": 256}
    config = BertConfig(**sizes, num_attention_heads=4, vocab_size=50)
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    model: Any = task.model(config)
    ids = jnp.ones((2, 64), jnp.int32)
    params = nn.unbox(model.init(jax.random.key(0), ids, ids, ids))["params"]
    rate = functools.partial(layer_rate, layers=4, frozen_layers=frozen_layers)

    def total(params: Any) -> Any:
        outputs = model.apply({"params": stop_gradients(params, rate)}, ids, ids, ids)
        return sum(jnp.sum(output) for output in jax.tree.leaves(outputs))

    compiled = jax.jit(jax.grad(total)).lower(params).compile().as_text() or ""
    counted = finetuning_flops_per_token(
        config, 64, of_pieces=task.of_pieces, frozen_layers=frozen_layers
    )
    assert counted * 2 * 64 == pytest.approx(flops(compiled), rel=0.04)


def test_run_adds_up_its_phases_and_what_is_left_of_them():
    model = model_size("tiny")
    phases = (Phase(steps=10, batch_size=4), Phase(seq_len=512, steps=5, batch_size=2))
    short, long = (step_flops(model, phase) for phase in phases)
    assert run_flops(model, phases) == pytest.approx(10 * short + 5 * long)
    assert run_flops(model, phases, 7) == pytest.approx(3 * short + 5 * long)
    assert run_flops(model, phases, 10) == pytest.approx(5 * long)
    assert run_flops(model, phases, 12) == pytest.approx(3 * long)
    assert run_flops(model, phases, 15) == 0


def test_peaks_are_known_or_none():
    assert peak_flops("NVIDIA H200") == 989e12
    assert peak_flops("TPU v5 lite") == 197e12
    a100 = ("-SXM4-40GB", "-SXM4-80GB", "-PCIE-40GB", " 80GB PCIe")
    assert {peak_flops(f"NVIDIA A100{form}") for form in a100} == {312e12}
    for name, other in (("v5 lite", "v5e"), ("v5", "v5p"), ("v6 lite", "v6e")):
        assert peak_flops(f"TPU {name}") == peak_flops(f"TPU {other}")
    assert peak_flops("cpu") is None
    assert peak_flops("NVIDIA H100 80GB HBM3 MIG 1g.10gb") is None
