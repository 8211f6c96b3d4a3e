"""What the train step sends over a TPU's network is what theory says, and nothing else.

Compiled ahead of time for a real topology; bytes are those of a device's arrays.
"""

import os
from collections import Counter
from typing import Any, NamedTuple

import jax
import pytest

from bert_jax.config import BertConfig, Config, MeshConfig, Phase
from bert_jax.data.batch_shapes import batch_shapes
from bert_jax.planning.hlo import Collective, collectives
from bert_jax.training.program import pretraining_program
from bert_jax.training.sharding import batch_sharding, make_mesh
from bert_jax.training.state import parameter_count

pytestmark = pytest.mark.slow
pytest.importorskip("libtpu", reason="libtpu, the TPU compiler, is not installed")

WIDTH, LAYERS, HEADS, WIDE, VOCAB = 256, 3, 4, 1024, 8192
ROWS, LENGTH, PREDICTIONS = 64, 128, 20
# Not taken apart and woven into the products beside them.
COLLECTIVES_APART = (
    "xla_tpu_enable_windowed_einsum_for_all_gather=false,"
    "xla_tpu_enable_windowed_einsum_for_reduce_scatter=false"
)
# Scalars (losses, weights, norms) are added up too.
SCALARS = 256


class Sizes(NamedTuple):
    """Numbers of values; what tensor parallelism cuts is divided by `tensor`."""

    layer: int  # the kernels of one
    heads: int  # pooler's and transform's kernels
    table: int
    positions: int
    vectors: int  # biases, LayerNorm, token types, the next-sentence kernel

    @property
    def matrices(self) -> int:
        return LAYERS * self.layer + self.heads + self.table + self.positions

    def gathered(self, scan_layers: bool) -> int:
        """What fsdp gathers: all once; in a loop, all layers but the last again backward."""
        times = 2 * LAYERS - 1 if scan_layers else LAYERS
        return times * self.layer + self.heads + self.table

    @property
    def all(self) -> int:
        return self.matrices + self.vectors


def sizes(tensor: int = 1) -> Sizes:
    d = WIDTH
    a_layer = 3 * d // tensor + WIDE // tensor + d + d + 4 * d  # q, k, v; wide; outputs; LayerNorms
    embeddings = 2 * d + 2 * d  # token types, LayerNorm
    heads = d + 3 * d + VOCAB // tensor + 2 * d + 2  # pooler, transform, logits, next sentence
    return Sizes(
        layer=(4 * d * d + 2 * d * WIDE) // tensor,
        heads=2 * d * d,
        table=VOCAB * d // tensor,
        positions=LENGTH * d,
        vectors=LAYERS * a_layer + embeddings + heads,
    )


def config(scan_layers: bool = False, **mesh: Any) -> Config:
    # Without dropout, which sends nothing and takes long to compile.
    model = BertConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=WIDE,
        max_position_embeddings=LENGTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        dtype="bfloat16",
        scan_layers=scan_layers,
    )
    phase = Phase(seq_len=LENGTH, steps=10, batch_size=ROWS, max_predictions=PREDICTIONS)
    return Config(
        model=model, phases=(phase,), mesh=MeshConfig(**mesh), xla_options=COLLECTIVES_APART
    )


def sent(config: Config, topology: str = "v5e:4x2", slices: int = 1) -> list[Collective]:
    """The collectives of a step, compiled for a topology; those of scalars left out."""
    from jax.experimental import topologies

    several = {"num_slices": slices} if slices > 1 else {}
    devices = topologies.get_topology_desc(topology, "tpu", **several).devices
    mesh = make_mesh(config.mesh, devices)
    with jax.set_mesh(mesh):
        program = pretraining_program(config, mesh)
        batch = {
            name: jax.ShapeDtypeStruct(shape, dtype, sharding=batch_sharding(mesh))
            for name, (shape, dtype) in batch_shapes(config.phases[0], config.data).items()
        }
        lowered = program.train_step.lower(program.abstract, batch, 0)
    assert parameter_count(program.abstract.params) == sizes().all
    text = lowered.compile().as_text()
    assert text
    return [each for each in collectives(text) if each.bytes > SCALARS]


def bytes_by_kind(found: list[Collective]) -> Counter[tuple[str, str]]:
    """Bytes of a step, by kind and dtype."""
    total: Counter[tuple[str, str]] = Counter()
    for each in found:
        for shape in each.shapes:
            total[each.kind, shape.dtype] += each.times * shape.bytes
    return total


def assert_sent(found: list[Collective], expected: dict[tuple[str, str], int]) -> None:
    """Bytes by kind are as expected, but for scalars that were joined to something larger."""
    actual = bytes_by_kind(found)
    assert actual.keys() == expected.keys()
    for kind, size in expected.items():
        assert size <= actual[kind] <= size + SCALARS, (kind, actual[kind], size)


@pytest.fixture(autouse=True, scope="module")
def no_tpu() -> None:
    """The compiler is not to look for a TPU, nor mind that another process uses it."""
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-8")


@pytest.mark.parametrize("scan_layers", [True, False])
def test_data_parallel_sends_each_gradient_once(scan_layers):
    found = sent(config(scan_layers, data=8))
    assert_sent(found, {("all-reduce", "f32"): 4 * sizes().all})
    # One in the loop over all layers but the last, and three after it; in a row four of all.
    times = [1, 1, 1, LAYERS - 1] if scan_layers else [1, 1, 1, 1]
    assert sorted(each.times for each in found) == times
    assert {each.group_size for each in found} == {8}


def test_gradients_in_bfloat16_are_half_as_large():
    halved = config(data=8)
    halved.model.gradient_dtype = "bfloat16"
    size = sizes()
    in_float32 = size.positions + size.vectors - 2 * WIDTH  # the next-sentence kernel is no vector
    expected = {
        ("all-reduce", "bf16"): 2 * (size.all - in_float32),
        ("all-reduce", "f32"): 4 * in_float32,
    }
    assert_sent(sent(halved), expected)


def test_zero_sends_gradients_to_their_part_and_parameters_back():
    size = sizes()
    expected = {
        ("reduce-scatter", "f32"): 4 * size.matrices,
        ("all-gather", "f32"): 4 * size.matrices,
        ("all-reduce", "f32"): 4 * size.vectors,
    }
    assert_sent(sent(config(data=8, shard_optimizer=True)), expected)


@pytest.mark.parametrize("scan_layers", [True, False])
def test_fsdp_gathers_weights_and_scatters_gradients(scan_layers):
    size = sizes()
    expected = {
        ("all-gather", "bf16"): 2 * size.gathered(scan_layers),
        ("all-gather", "f32"): 4 * size.positions,  # added to the embeddings in float32
        ("reduce-scatter", "f32"): 4 * size.matrices,
        ("all-reduce", "f32"): 4 * size.vectors,
    }
    found = sent(config(scan_layers, data=1, fsdp=8))
    assert_sent(found, expected)
    # A looped layer's six kernels, as they are used, each in its direction.
    gathered = [each for each in found if each.kind == "all-gather" and each.times == LAYERS - 1]
    assert len(gathered) == (12 if scan_layers else 0)


def tensor_parallel(data: int, tensor: int) -> tuple[dict[tuple[str, str], int], int]:
    """Bytes that the devices along `tensor` add up in a step, and those of a gathered maximum."""
    rows = ROWS // data
    activation, predicted = rows * LENGTH * WIDTH, rows * PREDICTIONS
    # Attention and feed-forward; backward queries, keys and values, together, and the wide kernel.
    # In the last layer all but keys and values is at the predictions and [CLS].
    read = rows * (PREDICTIONS + 1) * WIDTH
    layers = 4 * ((LAYERS - 1) * (2 + 2) * activation + activation + 4 * read)
    head = 4 * predicted * WIDTH
    sums = 3 * 4 * predicted  # of exponentials, the label's logit, and the maximum beside it
    return {("all-reduce", "bf16"): 2 * activation, ("all-reduce", "f32"): layers + head + sums}, (
        4 * predicted * tensor
    )


def test_tensor_parallel_adds_up_activations_and_keeps_the_vocabulary_apart():
    found = sent(config(data=4, tensor=2))
    expected, maximum = tensor_parallel(data=4, tensor=2)
    gathers = [each for each in found if each.kind == "all-gather"]
    assert all(each.bytes <= maximum for each in gathers)
    assert len(gathers) <= 1  # of the softmax
    reduced = [each for each in found if each.kind != "all-gather"]
    assert_sent([each for each in reduced if each.group_size == 2], expected)
    gradients = {("all-reduce", "f32"): 4 * sizes(tensor=2).all}
    assert_sent([each for each in reduced if each.group_size == 4], gradients)


@pytest.mark.parametrize("scan_layers", [True, False])
def test_all_three_together_gather_nothing_but_weights(scan_layers):
    found = sent(config(scan_layers, data=2, fsdp=2, tensor=2))
    size, rows = sizes(tensor=2), ROWS // 4
    _, maximum = tensor_parallel(data=4, tensor=2)
    gathers = [each for each in found if each.kind == "all-gather" and each.bytes > maximum]
    expected = {
        ("all-gather", "bf16"): 2 * size.gathered(scan_layers),
        ("all-gather", "f32"): 4 * size.positions,
    }
    assert_sent(gathers, expected)
    others = [each for each in found if each.kind in ("all-to-all", "collective-permute")]
    assert all(each.bytes < 2 * rows * LENGTH * WIDTH for each in others)


def test_fsdp_stays_within_a_slice():
    found = sent(config(data=2, fsdp=4), "v5e:2x2", slices=2)
    gathers = [each for each in found if each.kind in ("all-gather", "reduce-scatter")]
    assert gathers
    assert {each.group for each in gathers} <= {(0, 1, 2, 3), (4, 5, 6, 7)}
