"""Sizes, shapes, the two ways through the depth, rematerialisation, dtypes and bad ids."""

import dataclasses
import functools
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import BertConfig, model_size
from bert_jax.models import BertForPreTraining, BertModel, embeddings, encoder
from bert_jax.models.activations import activation
from bert_jax.models.attention import attention, mask_bias
from bert_jax.models.dropout import dropout
from bert_jax.models.products import product
from bert_jax.models.word_table import word_logits, word_rows, word_table

CONFIG = BertConfig(
    vocab_size=90,
    hidden_size=32,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=24,
    vocab_multiple=32,
)
SCANNED = dataclasses.replace(CONFIG, scan_layers=True)
B, L, P = 4, 16, 5


def batch_of(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "input_ids": rng.integers(0, CONFIG.vocab_size, (B, L)),
        "token_type_ids": rng.integers(0, 2, (B, L)),
        "attention_mask": (np.arange(L) < [[L], [L - 1], [9], [3]]).astype(np.int32),
        "masked_lm_positions": rng.integers(0, L, (B, P)),
    }


@functools.cache
def init(config: BertConfig, next_sentence: bool = True) -> dict:
    model = BertForPreTraining(config, next_sentence)
    return nn.unbox(jax.jit(model.init)(jax.random.key(0), **batch_of()))["params"]


def forward(config: BertConfig, params: dict, batch: dict, next_sentence: bool = True) -> dict:
    model = BertForPreTraining(config, next_sentence)
    return jax.jit(model.apply)({"params": params}, **batch)


def encoded(config: BertConfig, params: dict, batch: dict) -> jax.Array:
    """The encoder's output at every position."""
    inputs = {name: batch[name] for name in ("input_ids", "token_type_ids", "attention_mask")}
    output: Any = jax.jit(BertModel(config).apply)({"params": params["bert"]}, **inputs)
    return output[0]


def value_and_gradient(config: BertConfig, params: dict, **apply) -> tuple:
    """Some scalar of all outputs, and its gradient."""

    def scalar(params):
        model = BertForPreTraining(config)
        outputs: Any = model.apply({"params": params}, **batch_of(), **apply)
        mlm = jax.nn.log_softmax(outputs["mlm_logits"])[..., 7].mean()
        nsp = jax.nn.log_softmax(outputs["nsp_logits"])[..., 1].mean()
        return mlm + nsp

    return jax.jit(jax.value_and_grad(scalar))(params)


def unstacked(params: dict) -> dict:
    """The scanned tree with its layers apart."""
    layers = params["bert"]["encoder"]["layer"]
    encoder = {
        f"layer_{index}": jax.tree.map(lambda array, index=index: array[index], layers)
        for index in range(CONFIG.num_hidden_layers)
    }
    return {**params, "bert": {**params["bert"], "encoder": encoder}}


def assert_close(ours, expected, tolerance: float) -> None:
    """Leaf by leaf, relative to the leaf's largest magnitude or a hundredth of the tree's."""
    largest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(expected))

    def check(path, a, b):
        scale = max(float(jnp.abs(b).max()), 1e-2 * largest)
        assert float(jnp.abs(a - b).max()) <= tolerance * scale, jax.tree_util.keystr(path)

    jax.tree_util.tree_map_with_path(check, ours, expected)


def parameter_count(model: nn.Module, **inputs) -> int:
    variables = jax.eval_shape(model.init, jax.random.key(0), **inputs)
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(nn.unbox(variables)["params"]))


def formula(config: BertConfig) -> int:
    """Parameters of the encoder with its pooler, from the paper's description."""
    d, f = config.hidden_size, config.intermediate_size
    norm = 2 * d
    tables = config.vocab_size + config.max_position_embeddings + config.type_vocab_size
    layer = 4 * (d * d + d) + norm + (d * f + f) + (f * d + d) + norm
    return tables * d + norm + config.num_hidden_layers * layer + d * d + d


@pytest.mark.parametrize(
    ("size", "encoder", "pretraining", "published"),
    [
        # Published, in millions, with the heads: table 1 of Turc et al. for the small ones and
        # base; the BERT paper's section 3 has 110 and 340.
        ("tiny", 4_385_920, 4_433_468, 4.4),
        ("mini", 11_170_560, 11_267_900, 11.3),
        ("small", 28_763_648, 29_058_876, 29.1),
        ("medium", 41_373_184, 41_668_412, 41.7),
        ("base", 109_482_240, 110_106_428, 110.1),
        ("large", 335_141_888, 336_226_108, 336.2),
    ],
)
def test_parameter_counts(size, encoder, pretraining, published):
    config = dataclasses.replace(model_size(size), vocab_multiple=1)
    ids = jnp.zeros((1, 8), jnp.int32)
    inputs = {"input_ids": ids, "token_type_ids": ids, "attention_mask": ids}
    assert parameter_count(BertModel(config), **inputs) == formula(config) == encoder
    model = BertForPreTraining(config)
    assert parameter_count(model, **inputs, masked_lm_positions=ids) == pretraining
    assert round(pretraining / 1e6, 1) == published
    padded = BertForPreTraining(model_size(size))
    extra = (config.hidden_size + 1) * (30592 - 30522)
    assert parameter_count(padded, **inputs, masked_lm_positions=ids) == pretraining + extra


def test_initial_values_are_the_cut_normal_of_the_original():
    config = model_size("tiny")
    table = init(config)["bert"]["embeddings"]["word_embeddings"]
    assert float(jnp.abs(table).max()) <= 0.04
    # A normal cut at two sigma keeps 0.8796 of its deviation; nothing makes up for it.
    np.testing.assert_allclose(table.std(), 0.02 * 0.87962566, rtol=2e-3)
    for path, leaf in jax.tree_util.tree_leaves_with_path(init(CONFIG)):
        if path[-1].key.endswith("bias"):
            assert not leaf.any(), path
        if path[-1].key == "scale":
            assert (leaf == 1).all(), path


@pytest.mark.parametrize("scan_layers", [True, False])
def test_layers_are_initialised_apart(scan_layers):
    params = unstacked(init(SCANNED)) if scan_layers else init(CONFIG)
    layers = params["bert"]["encoder"]
    kernels = [layers[f"layer_{index}"]["intermediate"]["dense"]["kernel"] for index in range(3)]
    assert (abs(np.corrcoef([kernel.ravel() for kernel in kernels]) - np.eye(3)) < 0.1).all()


@pytest.mark.parametrize("scan_layers", [True, False])
def test_outputs_while_parameters_are_made_are_the_model_s(scan_layers):
    config = dataclasses.replace(CONFIG, scan_layers=scan_layers)
    make = jax.jit(BertForPreTraining(config).init_with_output)
    outputs, made = make(jax.random.key(0), **batch_of())
    assert_close(outputs, forward(config, nn.unbox(made)["params"], batch_of()), 1e-6)


@pytest.mark.parametrize("by", ["init", "gradient", "gradient with dropout"])
def test_layers_in_a_row_are_traced_once_however_many_there_are(monkeypatch, by):
    calls = []

    def counted(config: BertConfig, values: jax.Array) -> jax.Array:
        calls.append(values.shape)  # runs where a layer is traced
        return activation(config, values)

    def traced(layers: int) -> int:
        config = dataclasses.replace(CONFIG, num_hidden_layers=layers)
        params = jax.eval_shape(lambda: init.__wrapped__(config))
        if by == "init":
            return len(calls)
        calls.clear()
        dropout = {"deterministic": False, "rngs": {"dropout": jax.random.key(0)}}
        more = dropout if by == "gradient with dropout" else {}
        jax.eval_shape(functools.partial(value_and_gradient, config, **more), params)
        return len(calls)

    monkeypatch.setattr(encoder, "activation", counted)
    few = traced(3)
    calls.clear()
    assert few == traced(6) > 0


def test_a_profile_tells_layers_in_a_row_apart():
    gradient = jax.jit(functools.partial(value_and_gradient, CONFIG))
    text = gradient.lower(init(CONFIG)).compile().as_text() or ""
    for index in range(CONFIG.num_hidden_layers):
        assert f"/layer_{index}/" in text


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_shapes_and_dtypes(dtype):
    config = dataclasses.replace(CONFIG, dtype=dtype)
    params = init(config)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params))
    outputs = forward(config, params, batch_of())
    assert {name: (array.shape, array.dtype) for name, array in outputs.items()} == {
        "pooled_output": ((B, 32), dtype),
        "mlm_logits": ((B, P, 96), "float32"),
        "mlm_scores": ((B, P, 96), "float32"),
        "mlm_bias": ((96,), "float32"),
        "nsp_logits": ((B, 2), "float32"),
    }
    hidden = encoded(config, params, batch_of())
    assert (hidden.shape, hidden.dtype) == ((B, L, 32), dtype)


def test_without_next_sentence_there_is_neither_pooler_nor_head():
    params = init(CONFIG, next_sentence=False)
    assert "pooler" not in params["bert"]
    assert "seq_relationship" not in params["cls"]
    outputs = forward(CONFIG, params, batch_of(), next_sentence=False)
    assert set(outputs) == {"mlm_logits", "mlm_scores", "mlm_bias"}


def test_scanned_layers_equal_unrolled_ones():
    params = init(SCANNED)
    value, gradient = value_and_gradient(SCANNED, params)
    flat_value, flat_gradient = value_and_gradient(CONFIG, unstacked(params))
    np.testing.assert_allclose(value, flat_value, rtol=1e-6)
    assert_close(unstacked(gradient), flat_gradient, 1e-5)


@pytest.mark.parametrize("remat", ["none", "full"])
def test_scanned_bfloat16_layers_are_no_loop_on_a_cpu(monkeypatch, remat):
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = dataclasses.replace(SCANNED, dtype="bfloat16", remat=remat, **no_dropout)
    params = init(SCANNED)

    def compute() -> tuple[bool, Any]:
        function = functools.partial(value_and_gradient, config, deterministic=False)
        return "stablehlo.while" in jax.jit(function).lower(params).as_text(), function(params)

    loops, (value, gradient) = compute()
    monkeypatch.setattr(encoder, "device_platform", lambda: "tpu")
    loops_elsewhere, (looped_value, looped_gradient) = compute()
    assert (loops, loops_elsewhere) == (False, True)
    np.testing.assert_allclose(value, looped_value, rtol=1e-3)
    # bfloat16 has 8 bits: XLA rounds at other places in a loop.
    assert_close(gradient, looped_gradient, 1e-2)


@pytest.mark.parametrize("scan_layers", [True, False])
def test_a_seed_gives_the_same_parameters_on_any_platform(monkeypatch, scan_layers):
    model = BertForPreTraining(dataclasses.replace(CONFIG, scan_layers=scan_layers))
    params = nn.unbox(model.init(jax.random.key(0), **batch_of()))
    monkeypatch.setattr(encoder, "device_platform", lambda: "tpu")
    elsewhere = nn.unbox(model.init(jax.random.key(0), **batch_of()))
    jax.tree.map(np.testing.assert_array_equal, params, elsewhere)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("scan_layers", [True, False])
def test_on_a_cpu_layers_share_no_constants_without_gradients(dtype, scan_layers):
    """Either they are a loop, or each is a function that XLA is told not to take apart."""
    config = dataclasses.replace(CONFIG, dtype=dtype, scan_layers=scan_layers)
    compute = jax.jit(functools.partial(forward, config))
    params = init(config)
    lowered = compute.lower(params, batch_of())
    assert ("stablehlo.while" in lowered.as_text()) == scan_layers
    compiled: Any = lowered.compile()
    kept = 0 if scan_layers else config.num_hidden_layers
    assert compiled.as_text().count(" call(") == kept


@pytest.mark.parametrize(
    "scan_layers", [True, pytest.param(False, marks=[pytest.mark.slow, pytest.mark.exhaustive])]
)
def test_rematerialisation_changes_no_number(scan_layers):
    config = dataclasses.replace(CONFIG, num_hidden_layers=2, scan_layers=scan_layers)
    params = init(config)
    training = {"deterministic": False, "rngs": {"dropout": jax.random.key(3)}}
    value, gradient = value_and_gradient(config, params, **training)
    for remat in ("dots", "full"):
        again = dataclasses.replace(config, remat=remat)
        remat_value, remat_gradient = value_and_gradient(again, params, **training)
        np.testing.assert_allclose(value, remat_value, rtol=1e-6)
        assert_close(remat_gradient, gradient, 1e-5)


def test_rematerialisation_keeps_less():
    params = init(CONFIG)

    def kept(remat: str) -> int:
        config = dataclasses.replace(CONFIG, remat=remat)

        def total(params):
            return encoded(config, params, batch_of()).sum()

        backward = jax.eval_shape(lambda params: jax.vjp(total, params)[1], params)
        return sum(leaf.size for leaf in jax.tree.leaves(backward))

    assert kept("full") < kept("dots") < kept("none")


def test_bfloat16_is_close_to_float32():
    params = init(CONFIG)
    value, gradient = value_and_gradient(CONFIG, params)
    low = dataclasses.replace(CONFIG, dtype="bfloat16")
    low_value, low_gradient = value_and_gradient(low, params)
    np.testing.assert_allclose(low_value, value, rtol=1e-2)
    cosine = sum(
        float((a * b).sum())
        for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(low_gradient), strict=True)
    ) / (norm(gradient) * norm(low_gradient))
    assert cosine > 0.999
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(low_gradient))


def norm(tree) -> float:
    return math.sqrt(sum(float((leaf**2).sum()) for leaf in jax.tree.leaves(tree)))


def test_padding_changes_nothing_where_it_is_not():
    params = init(CONFIG)
    batch = batch_of()
    other = dict(batch, input_ids=np.where(batch["attention_mask"], batch["input_ids"], 5))
    outputs, others = (encoded(CONFIG, params, inputs) for inputs in (batch, other))
    real = batch["attention_mask"].astype(bool)
    np.testing.assert_array_equal(outputs[real], others[real])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("input_ids", CONFIG.vocab_size),  # a row of the table, but only padding
        ("input_ids", 10**6),
        ("input_ids", -1),
        ("token_type_ids", 2),
        ("position_ids", 24),
    ],
)
def test_an_id_outside_its_table_gives_nan_in_its_sequence(name, value):
    params = init(CONFIG)
    ids = np.tile(np.arange(L), (B, 1))
    batch = dict(batch_of(), position_ids=ids)
    batch[name] = batch[name].copy()
    batch[name][1, 2] = value
    outputs = forward(CONFIG, params, batch)
    np.testing.assert_array_equal(
        np.isnan(outputs["mlm_logits"]).all((1, 2)), [False, True, False, False]
    )


@pytest.mark.parametrize(("platform", "added"), [("tpu", 1), ("gpu", 0)])
def test_token_types_have_a_gradient_that_the_platform_s_compiler_takes(
    monkeypatch, platform, added
):
    """On a TPU added up row by row, for libtpu 0.0.50 ends at the sums; the same numbers."""
    monkeypatch.setattr(embeddings, "device_platform", lambda: platform)
    module = embeddings.Embeddings(CONFIG)
    inputs = [jnp.asarray(batch_of()[name]) for name in ("input_ids", "token_type_ids")]

    def scalar(params):
        output: Any = module.apply({"params": params}, *inputs)
        return jnp.square(output[..., 0]).sum()

    params = init(CONFIG)["bert"]["embeddings"]
    lowered = jax.jit(jax.grad(scalar)).lower(params)
    assert lowered.as_text().count("}) : (tensor<2x32xf32>") == added  # the end of a scatter
    monkeypatch.setattr(embeddings, "device_platform", lambda: "cpu")
    found = lowered.compile()(params)["token_type_embeddings"]
    expected = jax.jit(jax.grad(scalar))(params)["token_type_embeddings"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_rows_that_pad_the_table_have_no_probability_and_no_gradient():
    params = init(CONFIG)
    outputs = forward(CONFIG, params, batch_of())
    probabilities = jax.nn.softmax(outputs["mlm_logits"])
    assert not probabilities[..., CONFIG.vocab_size :].any()
    _, gradient = value_and_gradient(CONFIG, params)
    assert not gradient["bert"]["embeddings"]["word_embeddings"][CONFIG.vocab_size :].any()
    assert not gradient["cls"]["predictions"]["output_bias"][CONFIG.vocab_size :].any()


def test_attention_follows_its_definition():
    rng = np.random.default_rng(0)
    query, key, value = rng.normal(size=(3, 2, 3, 5, 4))
    mask = np.array([[1, 1, 1, 0, 0], [0, 0, 0, 0, 0]])
    scores = np.einsum("bhqk,bhmk->bhqm", query, key) / 2
    weights = np.exp(scores) * mask[:, None, None, :]
    weights[1] = 1  # every key masked: all alike
    weights /= weights.sum(-1, keepdims=True)
    expected = np.einsum("bhqm,bhmk->bhqk", weights, value)
    bias = mask_bias(jnp.asarray(mask))
    options = {"dtype": "float32", "dropout_rate": 0.1, "dropout_seed": None}
    np.testing.assert_allclose(attention(query, key, value, bias, **options), expected, rtol=2e-5)


@pytest.mark.parametrize("seed", [None, jnp.array([1, 2], jnp.uint32)])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("bfloat16", 1e-2)])
def test_gradient_of_attention_is_that_of_its_definition(dtype, tolerance, seed):
    keys = jax.random.split(jax.random.key(0), 4)
    *inputs, gradient = (jax.random.normal(key, (2, 2, 24, 8), dtype) for key in keys)
    bias = mask_bias(jnp.arange(24)[None] < jnp.array([[24], [7]]))

    def of(query, key, value):
        options = {"dtype": dtype, "dropout_rate": 0.1, "dropout_seed": seed}
        return attention(query, key, value, bias, **options)

    def by_definition(query, key, value):
        scores = product("BHLK,BHMK->BHLM", dtype, query, key) / 8**0.5 + bias
        probs = dropout(jax.nn.softmax(scores).astype(dtype), 0.1, seed)
        return product("BHLM,BHMK->BHLK", dtype, probs, value)

    expected, pull_expected = jax.vjp(by_definition, *inputs)
    context, pull = jax.vjp(of, *inputs)
    gradient = gradient.astype(jnp.float32)
    assert_close((context, *pull(gradient)), (expected, *pull_expected(gradient)), tolerance)
    # Of [B, H, L, L] one array is kept, in the compute dtype.
    kept = [leaf.dtype for leaf in jax.tree.leaves(pull) if leaf.shape == (2, 2, 24, 24)]
    assert kept == [dtype]


@pytest.mark.parametrize(
    ("dtype", "rtol", "atol"), [("bfloat16", 5e-3, 1e-6), ("float32", 0, 5e-6)]
)
@pytest.mark.parametrize("name", ["gelu_new", "gelu", "relu"])
def test_gradient_of_the_activation_needs_its_inputs_alone(name, dtype, rtol, atol):
    config = dataclasses.replace(CONFIG, hidden_act=name)
    inputs = jnp.linspace(-12, 12, 1000).astype(dtype)
    outputs, pull = jax.vjp(functools.partial(activation, config), inputs)
    assert [leaf.dtype for leaf in jax.tree.leaves(pull) if leaf.ndim] == [dtype]
    x = np.asarray(inputs, np.float64)
    of = {
        "gelu_new": lambda x: x / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))),
        "gelu": lambda x: x / 2 * (1 + np.vectorize(math.erf)(x / 2**0.5)),
        "relu": lambda x: np.maximum(x, 0),
    }[name]
    slope = (of(x + 1e-5) - of(x - 1e-5)) / 2e-5
    np.testing.assert_allclose(np.asarray(outputs, np.float64), of(x), rtol=rtol, atol=atol)
    (gradient,) = pull(jnp.ones_like(outputs))
    np.testing.assert_allclose(np.asarray(gradient, np.float64), slope, rtol=rtol, atol=atol)


# Few predictions for the width, and many.
@pytest.mark.parametrize("predictions", [P, 64 // B + 1])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradient_of_the_word_table_is_that_of_both_uses(dtype, predictions):
    config = dataclasses.replace(CONFIG, dtype=dtype)
    shapes = (96, 32), (B, predictions, 32), (B, predictions, 96)
    table, hidden, of_logits = (
        jax.random.normal(jax.random.key(index), shape) for index, shape in enumerate(shapes)
    )
    of_rows = jax.random.normal(jax.random.key(3), (B, L, 32), dtype)
    ids = batch_of()["input_ids"]

    def uses(table):
        rows = word_table(config, table)
        return word_rows(rows, ids), word_logits(dtype, rows, hidden)

    (gradient,) = jax.vjp(uses, table)[1]((of_rows, of_logits))
    rounded = (np.asarray(array.astype(dtype), np.float64) for array in (of_logits, hidden))
    expected = np.einsum("bpv,bpd->vd", *rounded)
    np.add.at(expected, ids, np.asarray(of_rows, np.float64))
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-5)


def test_every_parameter_names_its_axes():
    model = BertForPreTraining(CONFIG)
    boxed = jax.eval_shape(model.init, jax.random.key(0), **batch_of())["params"]
    known = {
        *("layers", "vocab", "position", "token_type"),
        *("embed", "heads", "kv", "mlp", "pooled", "transformed", "class"),
    }
    leaves = jax.tree.leaves(boxed, is_leaf=lambda x: isinstance(x, nn.Partitioned))
    for leaf in leaves:
        assert len(leaf.names) == leaf.value.ndim
        assert set(leaf.names) <= known
