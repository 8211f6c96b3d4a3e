"""What is read from HLO text, against modules written by hand and programs whose work is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from bert_jax.planning.hlo import collectives, flops, parse
from bert_jax.planning.kernels import kernels

# Shortened from what the TPU compiler writes: a loop of 12, matrices in memory and on the chip.
LOOP = """\
HloModule jit_step, is_scheduled=true

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[]{:T(128)} parameter(0)
  %b = f32[]{:T(128)} parameter(1)
  ROOT %add = f32[]{:T(128)} add(%a, %b)
}

%fused (p0: f32[12,64,32], p1: s32[], p2: f32[8,64]) -> f32[8,32] {
  %p0 = f32[12,64,32]{2,1,0:T(8,128)} parameter(0)
  %p1 = s32[]{:T(128)} parameter(1)
  %zero = s32[]{:T(128)} constant(0)
  %slice = f32[1,64,32]{2,1,0:T(8,128)} dynamic-slice(%p0, %p1, %zero, %zero), \
dynamic_slice_sizes={1,64,32}
  %weights = f32[64,32]{1,0:T(8,128)} bitcast(%slice)
  %p2 = f32[8,64]{1,0:T(8,128)} parameter(2)
  ROOT %product = f32[8,32]{1,0:T(8,128)} convolution(%p2, %weights), dim_labels=bf_io->bf
}

%body (state: (s32[], f32[12,64,32], f32[8,64])) -> (s32[], f32[12,64,32], f32[8,64]) {
  %state = (s32[]{:T(128)}, f32[12,64,32]{2,1,0:T(8,128)}, /*index=2*/f32[8,64]{1,0:T(8,128)S(1)}) \
parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%state), index=0
  %stack = f32[12,64,32]{2,1,0:T(8,128)} get-tuple-element(%state), index=1
  %x = f32[8,64]{1,0:T(8,128)S(1)} get-tuple-element(%state), index=2
  %y = f32[8,32]{1,0:T(8,128)} fusion(%stack, %i, %x), kind=kOutput, calls=%fused
  %reduced = f32[8,32]{1,0:T(8,128)S(1)} all-reduce(%y), channel_id=1, \
replica_groups=mesh['axis_0'=2,'axis_1'=4] {'axis_1'}, to_apply=%sum, \
metadata={op_name="jit(step)/layer/dot"}
  ROOT %next = (s32[]{:T(128)}, f32[12,64,32]{2,1,0:T(8,128)}, f32[8,64]{1,0:T(8,128)S(1)}) \
tuple(%i, %stack, %x)
}

%condition (state: (s32[], f32[12,64,32], f32[8,64])) -> pred[] {
  %state.1 = (s32[]{:T(128)}, f32[12,64,32]{2,1,0:T(8,128)}, f32[8,64]{1,0:T(8,128)S(1)}) \
parameter(0)
  %limit = s32[]{:T(128)} constant(12)
  %count = s32[]{:T(128)} get-tuple-element(%state.1), index=0
  ROOT %less = pred[]{:T(512)} compare(%count, %limit), direction=LT
}

ENTRY %main (w: f32[12,64,32], x: f32[8,64]) -> f32[8,64] {
  %w = f32[12,64,32]{2,1,0:T(8,128)} parameter(0)
  %x.1 = f32[8,64]{1,0:T(8,128)} parameter(1)
  %zero.1 = s32[]{:T(128)} constant(0)
  %start = (f32[8,64]{1,0:T(8,128)S(1)}, f32[8,64]{1,0:T(8,128)}, u32[]{:S(2)}) copy-start(%x.1)
  %fast = f32[8,64]{1,0:T(8,128)S(1)} copy-done(%start)
  %first = (s32[]{:T(128)}, f32[12,64,32]{2,1,0:T(8,128)}, f32[8,64]{1,0:T(8,128)S(1)}) \
tuple(%zero.1, %w, %fast)
  %while = (s32[]{:T(128)}, f32[12,64,32]{2,1,0:T(8,128)}, f32[8,64]{1,0:T(8,128)S(1)}) \
while(%first), condition=%condition, body=%body
  ROOT %out = f32[8,64]{1,0:T(8,128)S(1)} get-tuple-element(%while), index=2
}
"""


def program(body: str, fused: str = "") -> str:
    """A module with one computation, and what it calls, if it calls anything."""
    return f"HloModule m\n\n{fused}\n" + "ENTRY %main (p: f32[4]) -> f32[4] {\n" + body + "\n}\n"


def hbm_bytes(text: str) -> int:
    return sum(kernel.times * kernel.bytes for kernel in kernels(text))


def test_a_loop_counts_as_often_as_it_runs():
    assert flops(LOOP) == 12 * 2 * 8 * 64 * 32
    (reduced,) = collectives(LOOP)
    assert (reduced.kind, reduced.dtype, reduced.bytes, reduced.times) == (
        *("all-reduce", "f32"),
        *(8 * 32 * 4, 12),
    )
    assert reduced.group == (0, 1, 2, 3)
    assert reduced.op_name == "jit(step)/layer/dot"


def test_memory_traffic_is_of_slices_and_of_what_is_not_on_the_chip():
    copied = 8 * 64 * 4
    # The counter and a layer of the stack read, its product written.
    layer = 4 + 64 * 32 * 4 + 8 * 32 * 4
    assert hbm_bytes(LOOP) == copied + 12 * layer
    assert [(k.flops, k.times) for k in kernels(LOOP)] == [(0, 1), (2 * 8 * 64 * 32, 12)]


def test_a_fusion_that_is_started_and_done_is_one():
    fused = """\
%fused (p0: f32[12,8,16], p1: s32[], p2: f32[16,4]) -> f32[1,8,4] {
  %p0 = f32[12,8,16]{2,1,0} parameter(0)
  %p1 = s32[] parameter(1)
  %p2 = f32[16,4]{1,0} parameter(2)
  %slice = f32[1,8,16]{2,1,0} dynamic-slice(%p0, %p1, %p1, %p1), dynamic_slice_sizes={1,8,16}
  ROOT %dot = f32[1,8,4]{2,1,0} dot(%slice, %p2), lhs_contracting_dims={2}, rhs_contracting_dims={0}
}
"""
    text = program(
        "  %p = f32[12,8,16]{2,1,0} parameter(0)\n  %i = s32[] parameter(1)\n"
        "  %k = f32[16,4]{1,0} parameter(2)\n"
        "  %s = ((f32[12,8,16]{2,1,0}, s32[], f32[16,4]{1,0}), f32[1,8,4]{2,1,0}, u32[]) "
        "fusion-start(%p, %i, %k), kind=kLoop, calls=%fused\n"
        "  ROOT %d = f32[1,8,4]{2,1,0} fusion-done(%s)",
        fused,
    )
    assert flops(text) == sum(kernel.flops for kernel in kernels(text)) == 2 * 8 * 16 * 4
    assert hbm_bytes(text) == 4 * (8 * 16 + 1 + 16 * 4 + 8 * 4)


def test_what_cublas_multiplies_counts_and_what_it_is_lent_does_not():
    told = (
        '{"gemm_backend_config":{"epilogue":"GELU_AUX","dot_dimension_numbers":{'
        '"lhs_contracting_dimensions":["0","2"],"rhs_contracting_dimensions":["0","1"]}}}'
    )
    operands = "  %p = bf16[4,8,16]{2,1,0} parameter(0)\n  %k = bf16[4,16,32]{2,1,0} parameter(1)\n"
    product = (
        "%c = (bf16[8,32]{1,0}, bf16[8,32]{1,0}, s8[4194304]{0}) custom-call(%p, %k), "
        f'custom_call_target="__cublas$lt$matmul", backend_config={told}'
    )
    results = "(bf16[8,32]{1,0}, s8[4194304]{0})"
    taken = (
        "  %a = bf16[8,32]{1,0} get-tuple-element(%c), index=0\n"
        "  %b = s8[4194304]{0} get-tuple-element(%c), index=2\n"
        f"  ROOT %t = {results} tuple(%a, %b)"
    )

    def within(body: str, results: str) -> str:
        """A fusion of what `body` computes."""
        fused = f"%fused (p: bf16[4,8,16], k: bf16[4,16,32]) -> {results} {{\n{body}\n}}\n"
        whole = f"{operands}  ROOT %f = {results} fusion(%p, %k), kind=kCustom, calls=%fused"
        return program(whole, fused)

    for written, text in (
        (2, program(f"{operands}  ROOT {product}")),
        (2, within(f"{operands}  ROOT {product}", results.replace("(", "(bf16[8,32]{1,0}, "))),
        (1, within(f"{operands}  {product}\n{taken}", results)),
    ):
        assert flops(text) == 2 * 8 * 32 * (4 * 16)
        assert hbm_bytes(text) == 2 * (4 * 8 * 16 + 4 * 16 * 32 + written * 8 * 32)


def test_what_xla_says_of_a_loop_goes_before_its_condition():
    attribute = 'body=%body, backend_config={"known_trip_count":{"n":"5"}}'
    assert flops(LOOP.replace("body=%body", attribute)) == 5 * 2 * 8 * 64 * 32


def test_a_loop_of_unknown_length_is_not_guessed():
    with pytest.raises(ValueError, match="how often"):
        flops(LOOP.replace("%limit = s32[]{:T(128)} constant(12)", "%limit = s32[] add(%i, %i)"))


def test_text_that_is_no_module():
    with pytest.raises(ValueError, match="entry"):
        parse("nothing")


@pytest.mark.parametrize(("space", "moved"), [("", 2), (":S(1)", 1)])
def test_an_update_in_place_moves_the_update(space, moved):
    """Read and written; on the chip, written to no memory."""
    text = program(
        f"  %p = f32[100,8]{{1,0{space}}} parameter(0)\n  %u = f32[1,8]{{1,0}} parameter(1)\n"
        "  %i = s32[] parameter(2)\n"
        f"  ROOT %d = f32[100,8]{{1,0{space}}} dynamic-update-slice(%p, %u, %i, %i)"
    )
    assert hbm_bytes(text) == moved * 8 * 4


def test_an_update_in_a_fusion_is_read_and_what_it_updates_is_not():
    fused = """\
%fused (p0: f32[100,8], p1: f32[1,8], p2: s32[]) -> f32[100,8] {
  %p0 = f32[100,8]{1,0} parameter(0)
  %p1 = f32[1,8]{1,0} parameter(1)
  %p2 = s32[] parameter(2)
  ROOT %d = f32[100,8]{1,0} dynamic-update-slice(%p0, %p1, %p2, %p2)
}
"""
    text = program(
        "  %p = f32[100,8]{1,0} parameter(0)\n  %u = f32[1,8]{1,0} parameter(1)\n"
        "  %i = s32[] parameter(2)\n"
        "  ROOT %f = f32[100,8]{1,0} fusion(%p, %u, %i), kind=kLoop, calls=%fused",
        fused,
    )
    assert hbm_bytes(text) == 8 * 4 + 4 + 8 * 4


def test_the_memory_of_the_host_is_not_on_the_chip_and_a_truth_value_is_a_byte():
    text = program(
        "  %p = pred[100,8]{1,0:S(5)} parameter(0)\n  ROOT %c = pred[100,8]{1,0} copy(%p)"
    )
    assert hbm_bytes(text) == 2 * 100 * 8


@pytest.mark.parametrize(
    ("line", "kind", "size", "group"),
    [
        ("f32[4] all-reduce(%p), replica_groups={{0,2},{1,3}}", "all-reduce", 16, (0, 2)),
        ("f32[4] all-reduce(%p), replica_groups=[2,2]<=[4]", "all-reduce", 16, (0, 1)),
        ("f32[4] all-reduce(%p), replica_groups=[2,2]<=[2,2]T(1,0)", "all-reduce", 16, (0, 2)),
        ("f32[16] all-gather(%p), replica_groups=[1,4]<=[4]", "all-gather", 64, (0, 1, 2, 3)),
        ("f32[2] reduce-scatter(%p), replica_groups=[2,2]<=[4]", "reduce-scatter", 16, (0, 1)),
        ("f32[4] all-to-all(%p), replica_groups=[2,2]<=[4]", "all-to-all", 16, (0, 1)),
        (
            *("f32[4] collective-permute(%p), source_target_pairs={{1,0},{0,1}}",),
            *("collective-permute", 16, (1, 0)),
        ),
        (
            *("(f32[4], f32[8]) all-gather-start(%p), replica_groups={{0,1}}",),
            *("all-gather", 32, (0, 1)),
        ),
        (
            *("f32[4] all-reduce(%p), replica_groups=mesh['a'=2,'b'=3] {'a'}",),
            *("all-reduce", 16, (0, 3)),
        ),
    ],
)
def test_collectives_in_every_notation(line: str, kind: str, size: int, group: tuple[int, ...]):
    (found,) = collectives(program(f"  %p = f32[4]{{0}} parameter(0)\n  ROOT %c = {line}"))
    assert (found.kind, found.bytes, found.group, found.times) == (kind, size, group, 1)


def test_a_start_and_its_done_are_one_and_a_group_of_one_is_none():
    text = program(
        "  %p = bf16[4]{0} parameter(0)\n"
        "  %s = bf16[4]{0} all-reduce-start(%p), replica_groups={{0,1}}\n"
        "  %d = bf16[4]{0} all-reduce-done(%s)\n"
        "  ROOT %c = bf16[4]{0} all-reduce(%d), replica_groups={{0},{1}}"
    )
    (found,) = collectives(text)
    assert (found.dtype, found.bytes, found.group_size) == ("bf16", 8, 2)
    assert found.asynchronous


def test_a_product_that_the_tpu_compiler_made_a_window_of():
    """[16, 12] products of 128 x 64 by 64 x 128, as a convolution with dilated batch axes."""
    text = program(
        "  %q = f32[16,12,128,64]{3,2,1,0} parameter(0)\n"
        "  %k = f32[16,12,128,64]{3,2,1,0} parameter(1)\n"
        "  ROOT %c = f32[16,12,128,128]{3,2,1,0} convolution(%q, %k), "
        "window={size=16x12 stride=15x11 lhs_dilate=16x12}, dim_labels=01bf_01oi->01bf"
    )
    assert flops(text) == 2 * 16 * 12 * 128 * 128 * 64


@pytest.mark.parametrize("fused", [False, True])
def test_a_kernel_of_our_own_says_its_flops(fused):
    """As the TPU compiler writes it, and where it has fused with what makes its operands."""
    config = '"cost_estimate":{"flops":"4096","transcendentals":"8"},"needs_layout_passes":true'
    if fused:
        config = '"cost_estimate": {\n"bytes_accessed":8,\n"flops":4096\n}, "needs_passes": true'
    text = program(
        "  %x = f32[8,64]{1,0} parameter(0)\n"
        '  ROOT %c = f32[8,64]{1,0} custom-call(%x), custom_call_target="tpu_custom_call", '
        f'backend_config={{"custom_call_config":{{{config}}}}}'
    )
    assert flops(text) == 4096


def test_scanned_products_compiled_here():
    def stack(x: jax.Array, weights: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)[0]

    def repeated(x: jax.Array, weights: jax.Array) -> jax.Array:
        """A loop in a loop, as layers in micro-batches are."""
        return jax.lax.scan(lambda x, _: (stack(x, weights), None), x, length=3)[0]

    compiled = jax.jit(repeated).lower(jnp.ones((16, 64)), jnp.ones((7, 64, 64))).compile()
    assert flops(compiled.as_text() or "") == 3 * 7 * 2 * 16 * 64 * 64
    # At least the weights once a time; at most a few times the activations besides.
    weights, activations = 7 * 64 * 64 * 4, 16 * 64 * 4
    moved = hbm_bytes(compiled.as_text() or "") / 3
    assert weights <= moved <= 2 * weights + 7 * 12 * activations


def test_convolutions_compiled_here_agree_with_xla():
    image, kernel = jnp.ones((2, 9, 9, 4)), jnp.ones((3, 3, 4, 8))
    names = ("NHWC", "HWIO", "NHWC")

    def convolve(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(x, w, (2, 2), ((1, 1), (0, 2)), (1, 2), (2, 1), names)

    compiled = jax.jit(convolve).lower(image, kernel).compile()
    analysis = compiled.cost_analysis()
    assert analysis
    assert flops(compiled.as_text() or "") == pytest.approx(analysis["flops"], rel=0.02)


def test_collectives_compiled_here():
    mesh = jax.make_mesh((4, 2), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)

    def placed(shape: tuple[int, ...], *axes: str | None) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(
            shape, np.float32, sharding=NamedSharding(mesh, PartitionSpec(*axes))
        )

    def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.square(x @ weights))

    gradient = jax.jit(jax.grad(loss), out_shardings=NamedSharding(mesh, PartitionSpec()))
    text = gradient.lower(placed((32, 16)), placed((64, 32), "data")).compile().as_text() or ""
    (found,) = collectives(text)
    assert (found.kind, found.bytes, found.times) == ("all-reduce", 32 * 16 * 4, 1)
    assert found.group == (0, 2, 4, 6)
    assert flops(text) == 2 * 2 * (64 // 4) * 32 * 16
