"""The activation between the two products of a feed-forward layer, and in heads."""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from bert_jax.config import BertConfig
from bert_jax.models.devices import device_platform, part_count


def activation(config: BertConfig, inputs: jax.Array) -> jax.Array:
    """`config.hidden_act`, computed in float32, returned in the dtype of `inputs`."""
    dtype = config.dtype if _is_of_product(config, inputs) else "float32"
    return _activation(config.hidden_act, dtype, inputs)


def _is_of_product(config: BertConfig, inputs: jax.Array) -> bool:
    """Whether a GPU's library applies it, in float32, before it writes the product it is of.

    XLA arranges that for what is written in one dtype. It does not where it pads the product to a
    multiple of 8 rows, nor for what is computed again for the backward pass, after no product.
    """
    rows = inputs.size // inputs.shape[-1] // part_count()
    stays = config.remat == "none" and rows % 8 == 0
    return device_platform() == "gpu" and stays and config.hidden_act != "gelu"


def _normal_share(x: jax.Array) -> jax.Array:
    """The share of a normal distribution below x."""
    # By erf, as in PyTorch: `nn.gelu` takes erfc, which takes a CPU twice as long.
    return 0.5 + 0.5 * lax.erf(x * math.sqrt(0.5))


def _gelu(x: jax.Array) -> jax.Array:
    return x * _normal_share(x)


def _gelu_slope(x: jax.Array) -> jax.Array:
    density = jnp.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
    return _normal_share(x) + x * density


def _gelu_new_slope(x: jax.Array) -> jax.Array:
    """GELU's tanh form is x logistic(v), with v = 2 sqrt(2 / pi) (x + 0.044715 x^3).

    As differentiation writes its derivative, with tanh, it takes a GPU a third more instructions,
    and those longer than what it reads and writes.
    """
    factor = 2 * math.sqrt(2 / math.pi)
    cubic = factor * 0.044715
    square = x * x
    share = nn.sigmoid(x * (factor + cubic * square))
    return share + share * (1 - share) * (x * (factor + 3 * cubic * square))


# Each with its derivative.
_ACTIVATIONS = {
    "gelu_new": (functools.partial(nn.gelu, approximate=True), _gelu_new_slope),
    "gelu": (_gelu, _gelu_slope),
    "relu": (nn.relu, lambda x: (x > 0).astype(x.dtype)),
}


def _activated(name: str, dtype: str, inputs: jax.Array) -> jax.Array:
    function, _ = _ACTIVATIONS[name]
    return function(inputs.astype(dtype)).astype(inputs.dtype)


def _activated_forward(name: str, dtype: str, inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
    return _activated(name, dtype, inputs), inputs


def _activated_backward(
    name: str, _: str, inputs: jax.Array, gradient: jax.Array
) -> tuple[jax.Array]:
    if device_platform() == "gpu":
        # Else XLA finds what the forward pass made of them, and keeps that for here in float32.
        inputs = lax.optimization_barrier(inputs)
    _, slope = _ACTIVATIONS[name]
    inputs_gradient = gradient.astype(jnp.float32) * slope(inputs.astype(jnp.float32))
    return (inputs_gradient.astype(inputs.dtype),)


# Its backward pass begins with the inputs again. Automatic differentiation would keep four float32
# arrays of the widest shape there is for the tanh form, which cost a TPU more to write and to read
# than to compute, and half of the memory of a step.
_activation = jax.custom_vjp(_activated, nondiff_argnums=(0, 1))
_activation.defvjp(_activated_forward, _activated_backward)
