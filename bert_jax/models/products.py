"""Products of two arrays in a compute dtype, forward and backward."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.xla_metadata import set_xla_metadata

from bert_jax.models.devices import device_platform


def result_dtype(dtype: str) -> str:
    """In which what a library multiplies in `dtype`, and sums in float32, is best written.

    On a GPU in `dtype`: twice the bytes for the same sums cost more than the rounding tells.
    """
    return dtype if device_platform() == "gpu" else "float32"


def multiply(spec: str, dtype: str, left: jax.Array, right: jax.Array, result: str) -> jax.Array:
    """Two-operand einsum on operands of `dtype`, accumulated in float32, of dtype `result`."""
    operands, out = spec.split("->")
    batch, of_left, of_right, _ = _roles(spec)
    # As one product gives it: the left operand's rows come first. Left to `jnp.einsum`,
    # BLD,DHK->BHLK is a product of rows HK and columns BL, whose operand and result XLA transposes
    # element by element on a CPU; of BLHK it moves whole rows of K.
    swapped = batch + of_right + of_left
    ordered = out if out == swapped else batch + of_left + of_right
    multiplied = jnp.einsum(
        f"{operands}->{ordered}",
        left.astype(dtype),
        right.astype(dtype),
        preferred_element_type=jnp.dtype(result),
    )
    return jnp.einsum(f"{ordered}->{out}", multiplied)


def multiply_by_matrix(
    spec: str, dtype: str, left: jax.Array, kernel: jax.Array, result: str
) -> jax.Array:
    """`multiply` by a kernel as by the matrix that it is in memory, its first or last axes summed.

    Of a kernel with three axes, the last of which it sums over, XLA makes a transposed copy on a
    CPU; a matrix it takes either way.
    """
    operands, out = spec.split("->")
    left_letters, kernel_letters = operands.split(",")
    _, of_left, of_kernel, _ = _roles(spec)
    summed = "".join(letter for letter in kernel_letters if letter in left_letters)
    sizes = dict(zip(left_letters + kernel_letters, left.shape + kernel.shape, strict=True))
    rows = jnp.einsum(f"{left_letters}->{of_left + summed}", left)
    rows = rows.reshape(*(sizes[letter] for letter in of_left), -1)
    width = rows.shape[-1]
    first = kernel_letters.startswith(summed)
    matrix, axes = (kernel.reshape(width, -1), "sn") if first else (kernel.reshape(-1, width), "ns")
    multiplied = multiply(f"{of_left}s,{axes}->{of_left}n", dtype, rows, matrix, result)
    multiplied = multiplied.reshape([sizes[letter] for letter in of_left + of_kernel])
    return jnp.einsum(f"{of_left + of_kernel}->{out}", multiplied)


def _product(spec: str, dtype: str, left: jax.Array, right: jax.Array) -> jax.Array:
    """Two-operand einsum on operands of `dtype`, accumulated and returned in float32.

    Its gradient does the same, which automatic differentiation would not: that multiplies the
    float32 gradient with an upcast operand.

    Args:
      spec: an einsum in which each index of an operand is in the other operand or in the output.
    """
    return multiply(spec, dtype, left, right, "float32")


def _roles(spec: str) -> tuple[str, str, str, str]:
    """The letters of both operands and the output, the left's, the right's, and those summed."""
    left, right, out = spec.replace("->", ",").split(",")
    batch = "".join(letter for letter in left if letter in right and letter in out)
    of_left = "".join(letter for letter in left if letter not in right)
    of_right = "".join(letter for letter in right if letter not in left)
    summed = "".join(letter for letter in left if letter in right and letter not in out)
    return batch, of_left, of_right, summed


def _product_forward(spec: str, dtype: str, left: jax.Array, right: jax.Array):
    return product(spec, dtype, left, right), (left, right)


def _product_backward(
    spec: str, dtype: str, operands: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    left, right = operands
    of_left, of_right = gradient_specs(spec)
    left_gradient = product_in_training(of_left, dtype, gradient, right)
    right_gradient = product_in_training(of_right, dtype, gradient, left)
    return left_gradient.astype(left.dtype), right_gradient.astype(right.dtype)


def product_in_training(spec: str, dtype: str, left: jax.Array, right: jax.Array) -> jax.Array:
    """`product`, which for batches of matrices in bfloat16 XLA keeps in bfloat16 on a CPU.

    All operands of attention are transpositions, which XLA would cast to float32. Without gradients
    this doesn't pay (docs/cpu_path.md).
    """
    batch, *_ = _roles(spec)
    if not batch or dtype != "bfloat16" or device_platform() != "cpu":
        return product(spec, dtype, left, right)
    return product_apart(spec, dtype, left, right)


def product_apart(spec: str, dtype: str, left: jax.Array, right: jax.Array) -> jax.Array:
    """`product` on a CPU, where it is the left operand that is laid out anew for it.

    XLA's library there takes matrices that are in memory row by row, the left one's rows summed
    over. Of a product among others XLA itself chooses what it transposes for that, or casts to
    float32. A function that it is told not to take apart is given what has been laid out; the right
    operand goes in as it is.

    What is summed over must be whole on a device. Else the sum over devices is part of the
    function, and processes end each other: sums in different functions have no common order.
    """
    operands, out = spec.split("->")
    batch, of_left, of_right, summed = _roles(spec)
    left_letters, right_letters = operands.split(",")
    by_rows, ordered = batch + of_left + summed, batch + of_left + of_right
    multiply = jax.jit(
        lambda left, right: jnp.einsum(
            f"{by_rows},{right_letters}->{ordered}", left, right, preferred_element_type=jnp.float32
        )
    )
    left_by_rows = jnp.einsum(f"{left_letters}->{by_rows}", left.astype(dtype))
    multiplied = multiply(left_by_rows, right.astype(dtype))
    result: Any = set_xla_metadata(multiplied, inlineable="false")
    return jnp.einsum(f"{ordered}->{out}", result)


def gradient_specs(spec: str) -> tuple[str, str]:
    """The einsums of (gradient, the other operand) that give the left's and the right's."""
    left, right, out = spec.replace("->", ",").split(",")
    return f"{out},{right}->{left}", f"{out},{left}->{right}"


product = jax.custom_vjp(_product, nondiff_argnums=(0, 1))
product.defvjp(_product_forward, _product_backward)
