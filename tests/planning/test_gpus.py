"""GPUs that are not here, and what is compiled for them."""

import dataclasses

import pytest
from small_run import get_config

from bert_jax.config import MeshConfig
from bert_jax.planning import gpus
from bert_jax.planning.chips import CHIPS
from bert_jax.planning.compile import compile_phase
from bert_jax.planning.hlo import collectives, flops
from bert_jax.planning.kernels import kernels
from bert_jax.planning.topologies import Topology, describe_devices
from bert_jax.training.flops import step_flops

GPUS = ("a100", "h100", "h200")


@pytest.mark.parametrize("kind", CHIPS)
def test_gpus_can_be_described_where_jax_has_their_compiler(kind, monkeypatch):
    monkeypatch.setattr(gpus.importlib.util, "find_spec", lambda name: object())
    assert gpus.can_describe(CHIPS[kind]) == (kind in GPUS)
    monkeypatch.setattr(gpus.importlib.util, "find_spec", lambda name: None)
    assert not gpus.can_describe(CHIPS[kind])


@pytest.mark.parametrize("kind", GPUS)
def test_xla_is_told_what_the_data_sheet_says(kind):
    chip, told = CHIPS[kind], gpus._target_config(CHIPS[kind])
    assert f'name: "{chip.device_kind}"' in told
    assert f"memory_bandwidth: {int(chip.bandwidth)}\n" in told
    assert f"device_memory_size: {int(chip.memory)}\n" in told
    assert f"major: {8 if kind == 'a100' else 9}\n" in told


@pytest.mark.skipif(
    not gpus.can_describe(CHIPS["h100"]),
    reason="the compiler for NVIDIA's GPUs is not installed: the extra `gpu`",
)
@pytest.mark.parametrize(
    ("kind", "count", "dtype"),
    [
        ("h100", 1, "bfloat16"),
        ("a100", 4, "bfloat16"),
        ("h200", 16, "bfloat16"),
        ("h100", 1, "float32"),  # layers in a loop, without kernels
    ],
)
def test_a_step_is_compiled_for_gpus_that_are_not_here(kind, count, dtype):
    topology = Topology(kind, (count,))
    devices = describe_devices(topology)
    assert [device.device_kind for device in devices] == [topology.chip.device_kind] * count
    config = get_config()
    # Heads and widths that the kernels of attention and LayerNorm take.
    config.model = dataclasses.replace(
        config.model,
        hidden_size=128,
        intermediate_size=512,
        max_position_embeddings=128,
        dtype=dtype,
        scan_layers=dtype == "float32",
    )
    config.mesh = MeshConfig(data=-1, fsdp=min(count, 2))
    phase = dataclasses.replace(config.phases[0], seq_len=128, batch_size=16)
    compiled = compile_phase(config, phase, devices)
    assert ("attention_forward" in compiled.text) == (dtype == "bfloat16")
    assert compiled.memory.total > compiled.memory.parameters > 0
    model = step_flops(config.model, phase)
    # The backward pass of attention multiplies for the scores once more.
    assert 1 <= flops(compiled.text) * count / model <= 1.1
    assert sum(kernel.bytes for kernel in kernels(compiled.text)) > compiled.memory.parameters
    # Parts of weights go nowhere but to where they are put together.
    exchanged = collectives(compiled.text)
    kinds = {collective.kind for collective in exchanged}
    assert kinds <= {"all-gather", "all-reduce", "reduce-scatter"}
    assert bool(kinds) == (count > 1)
    shapes = [shape for each in exchanged if each.kind == "all-gather" for shape in each.shapes]
    table = (config.model.padded_vocab_size, config.model.hidden_size)
    assert [shape.dtype for shape in shapes if shape.dims == table] == ["bf16"] * (count > 1)
