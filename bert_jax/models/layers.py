"""What every part of the model is made of: projections, LayerNorm, initialisers."""

import functools
import re
from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.spmd import with_logical_constraint
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.layout import Layout, with_layout_constraint

from bert_jax.config import BertConfig
from bert_jax.models.devices import device_platform, part_count
from bert_jax.models.dropout import Draw, hardware_bits, random_bits
from bert_jax.models.products import (
    gradient_specs,
    multiply,
    multiply_by_matrix,
    product_apart,
    result_dtype,
)

# The name under which remat="dots" keeps the results of products with weights.
PROJECTION = "projection"


def initializer(config: BertConfig, axes: tuple[str, ...]) -> nn.initializers.Initializer:
    """Normal of deviation `initializer_range`, cut at two sigma, without variance correction.

    Source: modeling.py, `create_initializer` (`tf.truncated_normal_initializer`).
    """
    normal = nn.initializers.truncated_normal(
        config.initializer_range, jnp.float32, lower=-2.0, upper=2.0
    )
    return nn.with_logical_partitioning(normal, axes)


def constant(value: float, axes: tuple[str, ...]) -> nn.initializers.Initializer:
    """One value everywhere: 0 for biases, 1 for the scale of LayerNorm."""
    return nn.with_logical_partitioning(nn.initializers.constant(value, jnp.float32), axes)


def _dot(rows: jax.Array, weights: jax.Array) -> jax.Array:
    """[..., N] and [N] to the weighted sum of each row, [..., 1]."""
    # On a CPU XLA writes out what it is going to sum, and the weights once for every row with it.
    summed = lax.platform_dependent(
        rows.reshape(-1, rows.shape[-1]),
        weights,
        cpu=lambda rows, weights: rows @ weights,
        default=lambda rows, weights: (rows * weights).sum(axis=1),
    )
    return summed.reshape(*rows.shape[:-1], 1)


def sum_of_rows(rows: jax.Array, weights: jax.Array) -> jax.Array:
    """Rows [..., N], each times its weight [...], added up: [N]."""
    # XLA's reduction over rows takes a CPU up to five times as long as their product with weights:
    # of the vocabulary's size, as long as all of the head's products.
    return lax.platform_dependent(
        rows.reshape(-1, rows.shape[-1]),
        weights.reshape(-1),
        cpu=lambda rows, weights: weights @ rows,
        default=lambda rows, weights: (rows * weights[:, None]).sum(axis=0),
    )


def _normalized(epsilon: float, dtype: str, x: jax.Array, scale: jax.Array, bias: jax.Array):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over the last axis, in `dtype`.

    In float32. Its gradient is written out because it needs of the shape of `x` nothing but `x`;
    automatic differentiation keeps and reads several such arrays.
    """
    return _normalized_forward(epsilon, dtype, x, scale, bias)[0]


def _normalized_forward(
    epsilon: float, dtype: str, x: jax.Array, scale: jax.Array, bias: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    values = x.astype(jnp.float32)
    mean = values.mean(axis=-1, keepdims=True)
    deviation = values - mean
    # In two passes: E[x^2] - E[x]^2 cancels where the mean is large.
    inverse = lax.rsqrt(jnp.square(deviation).mean(axis=-1, keepdims=True) + epsilon)
    outputs = deviation * (inverse * scale) + bias
    return outputs.astype(dtype), (x, mean, inverse, scale)


def _normalized_backward(
    epsilon: float, dtype: str, residuals: tuple[jax.Array, ...], gradient: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    x, mean, inverse, scale = residuals
    shape = x.shape
    if device_platform() == "cpu":
        # Rows, as the sums below take them. In another shape XLA would compute the gradient again
        # in each kernel that reads it: from the layer above, and so on up to the last.
        arrays = (gradient, x, mean, inverse)
        gradient, x, mean, inverse = (a.reshape(-1, a.shape[-1]) for a in arrays)
    gradient = gradient.astype(jnp.float32)
    unit = (x.astype(jnp.float32) - mean) * inverse
    along = gradient * unit
    width = x.shape[-1]
    removed = (_dot(gradient, scale) + unit * _dot(along, scale)) / width
    x_gradient = inverse * (gradient * scale - removed)
    ones = jnp.ones(x.shape[:-1], jnp.float32)
    x_gradient = x_gradient.astype(x.dtype).reshape(shape)
    return x_gradient, sum_of_rows(along, ones), sum_of_rows(gradient, ones)


normalized = jax.custom_vjp(_normalized, nondiff_argnums=(0, 1))
normalized.defvjp(_normalized_forward, _normalized_backward)


class LayerNorm(nn.Module):
    """LayerNorm over the last axis: float32 statistics in two passes, output of compute dtype."""

    config: BertConfig

    @nn.compact
    def weights(self, width: int) -> tuple[jax.Array, jax.Array]:
        """Scale and bias, [D]."""
        scale = self.param("scale", constant(1, ("embed",)), (width,))
        return scale, self.param("bias", constant(0, ("embed",)), (width,))

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """[..., D] to [..., D]."""
        c = self.config
        scale, bias = self.weights(inputs.shape[-1])
        return normalized(c.layer_norm_eps, c.dtype, inputs, scale, bias)


def _gathered(weight: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """A weight of logical `axes`, put together from the parts that FSDP stores.

    Said where it is used, the compiler sends the weight and not the activations, and frees it
    after. Its gradient need not be put together: it is cut as it is added up.
    """
    return with_logical_constraint(weight, axes)


def _gathered_forward(weight: jax.Array, axes: tuple[str, ...]):
    return gathered(weight, axes), None


def _gathered_backward(axes: tuple[str, ...], _: None, gradient: jax.Array) -> tuple[jax.Array]:
    return (gradient,)


gathered = jax.custom_vjp(_gathered, nondiff_argnums=(1,))
gathered.defvjp(_gathered_forward, _gathered_backward)


def _projected(
    spec: str,
    config: BertConfig,
    axes: tuple[str, ...],
    inputs: jax.Array,
    kernels: tuple[jax.Array, ...],
) -> tuple[jax.Array, ...]:
    """`product` of inputs and each kernel, of logical `axes`, in float32 and cast here.

    A kernel's gradient is accumulated in float32 on a device, and given in `config.gradient_dtype`
    to be added up over devices: the sum has the dtype of what is summed. The inputs' gradients are
    added up before they are cast, so that tensor parallelism sends their sum alone.
    """
    merged, result = _merged(spec), result_dtype(config.dtype)
    operand = functools.partial(_operand, spec, config, axes, inputs)
    return tuple(
        multiply(merged, config.dtype, inputs, operand(kernel), result) for kernel in kernels
    )


def _merged(spec: str) -> str:
    """`spec` with a letter for axes in parentheses."""
    return re.sub(r"\((\w)\w*\)", r"\1", spec)


def _operand(
    spec: str, config: BertConfig, axes: tuple[str, ...], inputs: jax.Array, kernel: jax.Array
) -> jax.Array:
    whole = gathered(kernel.astype(config.dtype), axes)
    return whole.reshape(inputs.shape[-1], -1) if "(" in spec else whole


def _projected_forward(
    spec: str,
    config: BertConfig,
    axes: tuple[str, ...],
    inputs: jax.Array,
    kernels: tuple[jax.Array, ...],
):
    return projected(spec, config, axes, inputs, kernels), (inputs, kernels)


def _projected_backward(
    spec: str,
    config: BertConfig,
    axes: tuple[str, ...],
    operands: tuple[jax.Array, tuple[jax.Array, ...]],
    gradients: tuple[jax.Array, ...],
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    inputs, kernels = operands
    of_inputs, of_kernel = gradient_specs(_merged(spec))
    operand = functools.partial(_operand, spec, config, axes, inputs)
    by_kernel = multiply_by_matrix if device_platform() == "cpu" else multiply
    result = result_dtype(config.dtype)
    inputs_gradient = functools.reduce(
        jnp.add,
        (
            by_kernel(of_inputs, config.dtype, gradient, operand(kernel), result)
            for gradient, kernel in zip(gradients, kernels, strict=True)
        ),
    )
    kernel_gradients = (
        _kernel_gradient(of_kernel, config, inputs, gradient)
        .astype(kernel.dtype)
        .reshape(kernel.shape)
        for gradient, kernel in zip(gradients, kernels, strict=True)
    )
    return inputs_gradient.astype(inputs.dtype), tuple(kernel_gradients)


def _kernel_gradient(
    spec: str, config: BertConfig, inputs: jax.Array, gradient: jax.Array
) -> jax.Array:
    if device_platform() == "cpu" and part_count() == 1 and inputs.size > gradient.size:
        # XLA would transpose the inputs, the wider of the two. In float32, with a width that is a
        # power of two, that takes several times as long as the product. Not of a batch in parts,
        # whose sum over devices would get into the function.
        multiplied = product_apart(spec, config.dtype, gradient, inputs)
        multiplied = multiplied.astype(config.gradient_dtype)
        # Transposed once. XLA would leave that to those who read it, the norm and the optimizer.
        return with_layout_constraint(multiplied, Layout(tuple(range(multiplied.ndim))))
    return jnp.einsum(
        spec,
        gradient.astype(config.dtype),
        inputs.astype(config.dtype),
        preferred_element_type=jnp.dtype(config.gradient_dtype),
    )


projected = jax.custom_vjp(_projected, nondiff_argnums=(0, 1, 2))
projected.defvjp(_projected_forward, _projected_backward)


class Projection(nn.Module):
    """A product with a kernel, plus a bias: `tf.layers.dense` over any axes.

    Attributes:
      spec: einsum of (inputs, kernel); kernel axes that are in the output keep their order there.
        Those in parentheses are one axis of inputs or outputs, the last: BLD,D(HK)->BL(HK).
      shape: shape of the kernel.
      axes: logical axis names of the kernel.
    """

    config: BertConfig
    spec: str
    shape: tuple[int, ...]
    axes: tuple[str, ...]

    @nn.compact
    def weights(self) -> tuple[jax.Array, jax.Array]:
        """The kernel, and the bias as it is added to the output of `spec` without parentheses."""
        kernel_letters, out_letters = re.sub(r"[()]", "", self.spec).split(",")[1].split("->")
        kept = [i for i, letter in enumerate(kernel_letters) if letter in out_letters]
        sizes = dict(zip(kernel_letters, self.shape, strict=True))
        kernel = self.param("kernel", initializer(self.config, self.axes), self.shape)
        bias_axes = tuple(self.axes[i] for i in kept)
        bias = self.param("bias", constant(0, bias_axes), tuple(self.shape[i] for i in kept))
        return kernel, bias.reshape([sizes.get(letter, 1) for letter in out_letters])

    def __call__(self, inputs: jax.Array) -> jax.Array:
        return project(inputs, [self])[0]


def project(inputs: jax.Array, projections: Sequence[Projection]) -> list[jax.Array]:
    """What each of several projections, alike but for their weights, makes of the same inputs."""
    first = projections[0]
    config = first.config
    kernels, biases = zip(*(projection.weights() for projection in projections), strict=True)
    outputs = projected(first.spec, config, first.axes, inputs, kernels)
    return [
        checkpoint_name(
            _biased(config.dtype, output, bias.reshape(*bias.shape[: output.ndim - 1], -1)),
            PROJECTION,
        )
        for output, bias in zip(outputs, biases, strict=True)
    ]


def project_unbiased(inputs: jax.Array, projection: Projection) -> tuple[jax.Array, jax.Array]:
    """What a projection makes of inputs before its bias is added, of compute dtype; the bias."""
    config = projection.config
    kernel, bias = projection.weights()
    (output,) = projected(projection.spec, config, projection.axes, inputs, (kernel,))
    return checkpoint_name(output.astype(config.dtype), PROJECTION), bias.reshape(-1)


def project_stacked(inputs: jax.Array, projections: Sequence[Projection]) -> jax.Array:
    """What C projections to heads, alike but for their weights, make of inputs as one product.

    Returns:
      [B, L, H, C * K] of compute dtype.
    """
    config, axes = projections[0].config, projections[0].axes
    kernels, biases = zip(*(projection.weights() for projection in projections), strict=True)
    kernel = jnp.concatenate(kernels, axis=-1)
    heads, width = kernel.shape[1:]
    bias = jnp.concatenate([bias.reshape(heads, -1) for bias in biases], axis=-1)
    (output,) = projected("BLD,D(HK)->BL(HK)", config, axes, inputs, (kernel,))
    output = _biased(config.dtype, output, bias.reshape(-1))
    return checkpoint_name(output.reshape(*output.shape[:2], heads, width), PROJECTION)


def _biased(dtype: str, output: jax.Array, bias: jax.Array) -> jax.Array:
    """A product plus its bias in `dtype`."""
    if device_platform() == "gpu":
        return _added(output.astype(dtype), bias)
    return (output + bias).astype(dtype)


@jax.custom_vjp
def _added(output: jax.Array, bias: jax.Array) -> jax.Array:
    """output + bias in the dtype of `output`: cuBLAS does that, in float32, with the product.

    The bias's gradient is summed in float32.
    """
    return output + bias.astype(output.dtype)


def _added_forward(output: jax.Array, bias: jax.Array) -> tuple[jax.Array, jax.Array]:
    return _added(output, bias), bias


def _added_backward(bias: jax.Array, gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    _, pull = jax.vjp(lambda bias: jnp.broadcast_to(bias, gradient.shape), bias)
    return gradient, pull(gradient.astype(jnp.float32))[0]


_added.defvjp(_added_forward, _added_backward)


def at_positions(hidden: jax.Array, positions: jax.Array) -> jax.Array:
    """Of each row of [B, L, D] the positions [B, W]: [B, W, D]."""
    return jnp.take_along_axis(hidden, positions[..., None], axis=1)


def dropout_draw(config: BertConfig, axes: tuple[str | None, ...]) -> Draw:
    """What draws the bits of dropout for values with these logical axes."""
    if config.dropout_bits == "hash":
        return random_bits
    return functools.partial(hardware_bits, axes)


def dropout_seed(module: nn.Module, rate: float, deterministic: bool) -> jax.Array | None:
    """A fresh seed for `dropout` from the module's "dropout" key; None where nothing is dropped."""
    if deterministic or rate == 0:
        return None
    return jax.random.bits(module.make_rng("dropout"), (2,), jnp.uint32)
