"""The model computes what transformers' BertForPreTraining computes in PyTorch, in float32."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

from bert_jax.models import BertConfig, BertForPreTraining, BertModel
from bert_jax.training.losses import loss_weights, pretraining_metrics
from bert_jax.training.objective import summed_loss

SMALL = BertConfig(
    vocab_size=101,
    hidden_size=32,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=48,
    max_position_embeddings=40,
    vocab_multiple=16,
    scan_layers=True,
)
SHAPES = {
    "small-gelu_new": SMALL,
    "small-gelu": dataclasses.replace(SMALL, hidden_act="gelu", scan_layers=False),
    "relu-3-types-unpadded-table": dataclasses.replace(
        SMALL, hidden_act="relu", type_vocab_size=3, vocab_multiple=1, layer_norm_eps=1e-6
    ),
    "wide-1-head": BertConfig(
        vocab_size=500,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=1,
        intermediate_size=512,
        max_position_embeddings=64,
    ),
    "tiny-of-turc": BertConfig(
        vocab_size=3000,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=512,
        hidden_act="gelu",
    ),
}
INPUTS = ("input_ids", "token_type_ids", "attention_mask", "masked_lm_positions", "position_ids")


def torch_model(config: BertConfig, seed: int) -> transformers.BertForPreTraining:
    """A model with random weights everywhere: biases and LayerNorm too, so that none is idle."""
    theirs = transformers.BertForPreTraining(
        transformers.BertConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            num_hidden_layers=config.num_hidden_layers,
            num_attention_heads=config.num_attention_heads,
            intermediate_size=config.intermediate_size,
            hidden_act=config.hidden_act,
            max_position_embeddings=config.max_position_embeddings,
            type_vocab_size=config.type_vocab_size,
            layer_norm_eps=config.layer_norm_eps,
        )
    )
    theirs.set_attn_implementation("eager")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(0.1 * noise + (1.0 if "LayerNorm.weight" in name else 0.0))
    return theirs.eval()


def torch_name(path: tuple[str, ...]) -> str:
    """The PyTorch name of our unrolled parameter."""
    name = ".".join(path).replace("encoder.layer_", "encoder.layer.")
    name = name.replace("predictions.output_bias", "predictions.bias")
    name = name.replace(".kernel", ".weight").replace(".scale", ".weight")
    return name + ".weight" if name.endswith("_embeddings") else name


def to_ours(path: tuple[str, ...], array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """PyTorch's array in our layout: transposed where a kernel, padded where a vocabulary."""
    if path[-1] == "kernel":
        array = array.T
    if path[-1] in ("word_embeddings", "output_bias"):
        array = np.pad(array, [(0, shape[0] - len(array))] + [(0, 0)] * (array.ndim - 1))
    return array.reshape(shape)


def converted(config: BertConfig, arrays: dict[str, np.ndarray]) -> dict:
    """PyTorch's arrays, by name, as our tree; every array is used."""
    unrolled = BertForPreTraining(dataclasses.replace(config, scan_layers=False))
    ids = jnp.zeros((1, 8), jnp.int32)
    abstract = jax.eval_shape(unrolled.init, jax.random.key(0), ids, ids, ids, ids)["params"]
    used = set()

    def fill(path, leaf):
        keys = tuple(entry.key for entry in path)
        used.add(torch_name(keys))
        return to_ours(keys, arrays[torch_name(keys)], leaf.shape)

    tree = jax.tree_util.tree_map_with_path(fill, nn.unbox(abstract))
    assert used == set(arrays) - {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
    return stacked(tree, config) if config.scan_layers else tree


def stacked(tree: dict, config: BertConfig) -> dict:
    """The unrolled tree with its layers stacked under `layer`."""
    encoder = tree["bert"]["encoder"]
    layers = [encoder[f"layer_{index}"] for index in range(config.num_hidden_layers)]
    scanned = {"layer": jax.tree.map(lambda *arrays: np.stack(arrays), *layers)}
    return {**tree, "bert": {**tree["bert"], "encoder": scanned}}


def random_batch(config: BertConfig, batch: int, length: int, predictions: int, seed: int) -> dict:
    """Pairs of different lengths, one of them full and one with every key masked."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(length // 3, length + 1, batch)
    lengths[0], lengths[-1] = length, 0
    position = np.arange(length)
    return {
        "input_ids": rng.integers(0, config.vocab_size, (batch, length)),
        "token_type_ids": rng.integers(0, config.type_vocab_size, (batch, length)),
        "attention_mask": (position < lengths[:, None]).astype(np.int64),
        "position_ids": (position + rng.integers(0, 5, (batch, 1))) % length,
        "masked_lm_positions": np.sort(
            rng.permuted(np.tile(position, (batch, 1)), axis=1)[:, :predictions], axis=1
        ),
        "masked_lm_ids": rng.integers(0, config.vocab_size, (batch, predictions)),
        "masked_lm_weights": (rng.random((batch, predictions)) < 0.8).astype(np.float32),
        "next_sentence_labels": rng.integers(0, 2, batch),
        "next_sentence_weights": np.ones(batch, np.float32),
    }


def torch_outputs(theirs: transformers.BertForPreTraining, batch: dict) -> dict[str, torch.Tensor]:
    """Their outputs under our names, their logits at the masked positions, and the loss."""
    tensors = {name: torch.from_numpy(array) for name, array in batch.items()}
    names = ("input_ids", "token_type_ids", "attention_mask", "position_ids")
    inputs = {name: tensors[name] for name in names if name in tensors}
    encoded = theirs.bert(**inputs)
    mlm_logits, nsp_logits = theirs.cls(encoded.last_hidden_state, encoded.pooler_output)
    index = tensors["masked_lm_positions"][..., None].expand(-1, -1, mlm_logits.shape[-1])
    mlm_logits = mlm_logits.gather(1, index)
    cross_entropy = torch.nn.functional.cross_entropy
    weights = tensors["masked_lm_weights"]
    losses = cross_entropy(mlm_logits.mT, tensors["masked_lm_ids"], reduction="none")
    mlm_loss = (losses * weights).sum() / (weights.sum() + 1e-5)
    return {
        "sequence_output": encoded.last_hidden_state,
        "pooled_output": encoded.pooler_output,
        "mlm_logits": mlm_logits,
        "nsp_logits": nsp_logits,
        "loss": mlm_loss + cross_entropy(nsp_logits, tensors["next_sentence_labels"]),
    }


def deviation(ours: np.ndarray | jax.Array, theirs: np.ndarray, floor: float = 0.0) -> float:
    """Largest difference relative to the largest magnitude, which is at least `floor`."""
    scale = max(float(np.abs(theirs).max()), floor)
    return float(np.abs(np.asarray(ours) - theirs).max()) / scale


@pytest.mark.parametrize(
    ("shape", "positions"), [*((shape, False) for shape in SHAPES), ("small-gelu_new", True)]
)
def test_outputs_loss_and_gradients_equal_pytorch(shape, positions):
    config = SHAPES[shape]
    theirs = torch_model(config, seed=1)
    batch = random_batch(
        config, batch=6, length=config.max_position_embeddings // 2, predictions=7, seed=2
    )
    if not positions:
        del batch["position_ids"]
    arrays = {name: tensor.detach().numpy() for name, tensor in theirs.named_parameters()}
    model = BertForPreTraining(config)
    inputs: dict[str, Any] = {name: batch[name] for name in INPUTS if name in batch}

    def loss(params):
        outputs: Any = model.apply({"params": params}, **inputs)
        metrics = pretraining_metrics(outputs, batch)
        every = {name: inputs[name] for name in inputs if name != "masked_lm_positions"}
        encoded, _ = BertModel(config).apply({"params": params["bert"]}, **every)
        outputs["sequence_output"] = encoded
        return summed_loss(metrics, loss_weights(batch)), outputs

    params = converted(config, arrays)
    (value, outputs), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    expected = torch_outputs(theirs, batch)
    expected["loss"].backward()

    logits = np.asarray(outputs["mlm_logits"])
    assert (logits[..., config.vocab_size :] < -1e8).all()
    ours = dict(outputs, loss=value, mlm_logits=logits[..., : config.vocab_size])
    for name, tensor in expected.items():
        difference = deviation(ours[name], tensor.detach().numpy())
        print(f"{name}: {difference:.1e}")  # shown by -s
        assert difference < 1e-5, name

    torch_gradients = {
        name: np.asarray(parameter.grad) for name, parameter in theirs.named_parameters()
    }
    expected_gradients = converted(config, torch_gradients)
    # A key's bias shifts all scores of a query alike, which softmax doesn't see: its gradient is
    # rounding alone, and is held to the scale of the largest.
    largest = max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(expected_gradients))
    floors = jax.tree_util.tree_map_with_path(
        lambda path, _: largest if path[-2].key == "key" and path[-1].key == "bias" else 0.0,
        expected_gradients,
    )
    deviations = jax.tree.map(deviation, gradients, expected_gradients, floors)
    print(f"gradients: {max(jax.tree.leaves(deviations)):.1e}")
    for path, value in jax.tree_util.tree_leaves_with_path(deviations):
        assert value < 1e-5, jax.tree_util.keystr(path)


@pytest.mark.parametrize("shape", ["small-gelu_new", "small-gelu"])  # scanned and unrolled
def test_hidden_states_equal_pytorch(shape):
    config = SHAPES[shape]
    theirs = torch_model(config, seed=3)
    arrays = {name: tensor.detach().numpy() for name, tensor in theirs.named_parameters()}
    batch = random_batch(config, batch=4, length=12, predictions=2, seed=4)
    inputs = {name: batch[name] for name in INPUTS[:3]}
    model = BertModel(config)
    variables = {"params": converted(config, arrays)["bert"]}

    states, pooled = jax.jit(lambda v: model.apply(v, **inputs, hidden_states=True))(variables)
    with torch.no_grad():
        tensors = {name: torch.from_numpy(array) for name, array in inputs.items()}
        expected = theirs.bert(**tensors, output_hidden_states=True)

    assert states.shape == (config.num_hidden_layers + 1, 4, 12, config.hidden_size)
    for ours, layer in zip(states, expected.hidden_states, strict=True):
        assert deviation(ours, layer.numpy()) < 1e-5
    last, same_pooled = model.apply(variables, **inputs)
    assert deviation(states[-1], np.asarray(last)) < 1e-6
    assert deviation(pooled, np.asarray(same_pooled)) < 1e-6
