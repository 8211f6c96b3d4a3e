"""What every part of the model is made of: products, projections, LayerNorm, initialisers."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from bert_jax.config import BertConfig

# The name under which remat="dots" keeps the results of products with weights.
PROJECTION = "projection"


def initializer(config: BertConfig, axes: tuple[str, ...]) -> nn.initializers.Initializer:
    """Normal of deviation `initializer_range`, cut at two sigma, without variance correction.

    Source: modeling.py, `create_initializer` (`tf.truncated_normal_initializer`).
    """
    normal = nn.initializers.truncated_normal(config.initializer_range, lower=-2.0, upper=2.0)
    return nn.with_logical_partitioning(normal, axes)


def constant(value: float, axes: tuple[str, ...]) -> nn.initializers.Initializer:
    """One value everywhere: 0 for biases, 1 for the scale of LayerNorm."""
    return nn.with_logical_partitioning(nn.initializers.constant(value), axes)


def layer_norm(config: BertConfig, name: str = "LayerNorm") -> nn.LayerNorm:
    """LayerNorm over the last axis: float32 statistics in two passes, output of compute dtype."""
    return nn.LayerNorm(
        epsilon=config.layer_norm_eps,
        dtype=config.dtype,
        use_fast_variance=False,  # E[x^2] - E[x]^2 cancels where the mean is large
        scale_init=constant(1, ("embed",)),
        bias_init=constant(0, ("embed",)),
        name=name,
    )


def activation(config: BertConfig, inputs: jax.Array) -> jax.Array:
    """The feed-forward activation, computed in float32, returned in the dtype of `inputs`."""
    function = {
        "gelu_new": functools.partial(nn.gelu, approximate=True),
        "gelu": functools.partial(nn.gelu, approximate=False),
        "relu": nn.relu,
    }[config.hidden_act]
    return function(inputs.astype(jnp.float32)).astype(inputs.dtype)


def _product(spec: str, dtype: str, left: jax.Array, right: jax.Array) -> jax.Array:
    """Two-operand einsum on operands of `dtype`, accumulated and returned in float32.

    Its gradient does the same, which automatic differentiation would not: that multiplies the
    float32 gradient with an upcast operand. Weights come in float32 and are cast here, so that
    their gradient is never rounded to `dtype`.

    Args:
      spec: an einsum in which each index of an operand is in the other operand or in the output.
    """
    return jnp.einsum(
        spec, left.astype(dtype), right.astype(dtype), preferred_element_type=jnp.float32
    )


def _product_forward(spec: str, dtype: str, left: jax.Array, right: jax.Array):
    return product(spec, dtype, left, right), (left, right)


def _product_backward(
    spec: str, dtype: str, operands: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    left, right = operands
    left_axes, right_axes, out_axes = spec.replace("->", ",").split(",")
    left_gradient = product(f"{out_axes},{right_axes}->{left_axes}", dtype, gradient, right)
    right_gradient = product(f"{out_axes},{left_axes}->{right_axes}", dtype, gradient, left)
    return left_gradient.astype(left.dtype), right_gradient.astype(right.dtype)


product = jax.custom_vjp(_product, nondiff_argnums=(0, 1))
product.defvjp(_product_forward, _product_backward)


class Projection(nn.Module):
    """A product with a kernel, plus a bias: `tf.layers.dense` over any axes.

    Attributes:
      spec: einsum of (inputs, kernel); kernel axes that are in the output keep their order there.
      shape: shape of the kernel.
      axes: logical axis names of the kernel.
    """

    config: BertConfig
    spec: str
    shape: tuple[int, ...]
    axes: tuple[str, ...]

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        kernel_letters, out_letters = self.spec.split(",")[1].split("->")
        kept = [i for i, letter in enumerate(kernel_letters) if letter in out_letters]
        sizes = dict(zip(kernel_letters, self.shape, strict=True))
        kernel = self.param("kernel", initializer(self.config, self.axes), self.shape)
        bias_axes = tuple(self.axes[i] for i in kept)
        bias = self.param("bias", constant(0, bias_axes), tuple(self.shape[i] for i in kept))
        bias = bias.reshape([sizes.get(letter, 1) for letter in out_letters])
        outputs = product(self.spec, self.config.dtype, inputs, kernel) + bias
        return checkpoint_name(outputs.astype(self.config.dtype), PROJECTION)


def dropout_seed(module: nn.Module, rate: float, deterministic: bool) -> jax.Array | None:
    """A fresh seed for `dropout` from the module's "dropout" key; None where nothing is dropped."""
    if deterministic or rate == 0:
        return None
    return jax.random.bits(module.make_rng("dropout"), (2,), jnp.uint32)
