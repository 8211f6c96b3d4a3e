"""What runs on a TPU, read from training steps compiled for one."""

import dataclasses
import re

import pytest

from bert_jax.config import BertConfig, Config, MeshConfig, Phase, model_size
from bert_jax.planning.compile import compile_phase
from bert_jax.planning.topologies import describe_devices, parse_topologies

pytest.importorskip("libtpu", reason="TPU's compiler: pip install libtpu")
MODEL = dataclasses.replace(model_size("tiny"), vocab_size=1000, dtype="bfloat16")


def step_for_a_tpu(model: BertConfig, length: int) -> str:
    """HLO text of the step for 8 sequences on a v5e:2x2, by fsdp=2 and tensor=2."""
    (topology,) = parse_topologies("v5e:2x2")
    config = Config(model=model, mesh=MeshConfig(data=1, fsdp=2, tensor=2))
    phase = Phase(seq_len=length, batch_size=8, max_predictions=8)
    return compile_phase(config, phase, describe_devices(topology)).text


@pytest.mark.slow
@pytest.mark.parametrize("scan_layers", [True, False])
def test_attention_at_512_is_a_kernel_that_writes_no_scores(scan_layers):
    program = step_for_a_tpu(dataclasses.replace(MODEL, scan_layers=scan_layers), 512)
    # A device works on its own rows and heads: 8 rows over fsdp=2, 2 heads over tensor=2.
    assert re.search(r"forward_kernel\S* = bf16\[4,512,64\]", program)
    assert re.search(r"backward_kernel\S* = \(bf16\[4,512,64\]", program)
    assert "bf16[8,512,128]" not in program
    assert not re.search(r"\[[\d,]*512,512\]", program)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "length", "kernel"),
    [("v4:2x2x1", 2560, True), ("v4:2x2x1", 3072, False), ("v5e:1x1", 2560, True)],
)
def test_attention_is_a_kernel_as_far_as_vector_memory_goes(name, length, kernel):
    """The longest, with dropout, and one whose kernel a v4's compiler refuses."""
    (topology,) = parse_topologies(name)
    model = dataclasses.replace(MODEL, num_hidden_layers=2, max_position_embeddings=length)
    phase = Phase(seq_len=length, batch_size=topology.chips, max_predictions=8)
    program = compile_phase(Config(model=model), phase, describe_devices(topology)).text
    assert ("backward_kernel" in program) == kernel


@pytest.mark.slow
def test_each_tpu_draws_its_own_part_of_the_hardware_s_bits():
    model = dataclasses.replace(MODEL, dropout_bits="hardware")
    program = step_for_a_tpu(model, 128)
    drawn = set(re.findall(r"= u32\[([\d,]+)\]\S* rng-bit-generator\(", program))
    # Its own rows, heads and width: of all positions, and of 8 predictions and [CLS] in the last
    # layer, which are all that is read of it.
    assert drawn == {"4,128,128", "4,1,128,128", "4,9,128", "4,1,9,128"}
