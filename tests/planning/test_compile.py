"""A step compiled ahead of time, for virtual devices of this machine."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from small_run import get_config

from bert_jax.config import Config, MeshConfig
from bert_jax.data.batch_shapes import batch_shapes
from bert_jax.data.pipeline import open_examples
from bert_jax.data.tokenization import load_tokenizer
from bert_jax.errors import UserError
from bert_jax.planning.compile import (
    CompiledPhase,
    DoesNotFit,
    Memory,
    _compile_error,
    _memory,
    compile_phase,
    keep_programs,
)
from bert_jax.planning.hlo import collectives, flops
from bert_jax.training.flops import step_flops
from bert_jax.training.program import Program, pretraining_program
from bert_jax.training.sharding import make_mesh

GIB = 2**30


@pytest.fixture(scope="module")
def compiled() -> CompiledPhase:
    """The first phase of a small run, over eight devices."""
    config = get_config()
    return compile_phase(config, config.phases[0], jax.devices())


def test_the_batch_is_that_of_the_pipeline(shards):
    config = get_config()
    phase = config.phases[0]
    examples = open_examples(
        str(shards),
        "train",
        load_tokenizer(shards / "tokenizer"),
        config.data,
        seq_len=phase.seq_len,
        max_predictions=phase.max_predictions,
        seed=0,
    )
    batch = examples.batch(0, phase.batch_size)
    expected = {name: (array.shape, array.dtype) for name, array in batch.items()}
    assert batch_shapes(phase, config.data) == expected


def test_a_packed_phase_is_planned_for_a_row_a_sequence():
    config = get_config()
    config.data.packing = True
    config.model.num_hidden_layers = 1
    memory = compile_phase(config, config.phases[0], jax.devices()[:1]).memory
    # Ids, types, segments and positions; what is to be predicted, 15 % and at most 0.55 more for
    # each of 8 sequences a row: 9.2, so 10; and their [CLS].
    assert memory.batch == 16 * 4 * (4 * 32 + 3 * 10 + 3 * 8)


def test_memory_and_work_of_a_step_over_eight_devices(compiled):
    config = get_config()
    model = config.model
    layer = 4 * 32 * 32 + 2 * 32 * 64 + 4 * 32 + 64 + 32 + 4 * 32
    embeddings = (model.padded_vocab_size + 64 + 2) * 32 + 2 * 32
    heads = 2 * (32 * 32 + 32) + 2 * 32 + model.padded_vocab_size + 2 * 32 + 2
    parameters = 2 * layer + embeddings + heads
    assert compiled.memory.parameters == 4 * parameters
    assert compiled.memory.optimizer == pytest.approx(2 * 4 * parameters, abs=16)
    assert compiled.memory.batch == 2 * 4 * (3 * 32 + 3 * 5 + 2)
    assert compiled.memory.activations > 0
    assert compiled.seconds > 0
    ratio = 8 * flops(compiled.text) / step_flops(model, config.phases[0])
    assert 1 <= ratio <= 1.05
    # Gradients are reduced once, in float32, of positions those that occur; scalars besides.
    exchanged = collectives(compiled.text)
    assert {found.kind for found in exchanged} == {"all-reduce"}
    assert all(found.group_size == 8 for found in exchanged)
    moved = sum(found.times * found.bytes for found in exchanged)
    gradients = 4 * (parameters - (64 - 32) * 32)
    assert gradients <= moved <= gradients + 100


@pytest.mark.parametrize("scan_layers", [True, False])
def test_the_last_layer_is_computed_at_what_is_read(scan_layers):
    """The work of its other positions is in no program: a count with it is a third higher."""
    config = get_config()
    config.model.scan_layers = scan_layers
    phase = config.phases[0]
    computed = flops(compile_phase(config, phase, jax.devices()[:1]).text)
    assert 1 <= computed / step_flops(config.model, phase) <= 1.05
    elsewhere = phase.batch_size * (phase.seq_len - phase.max_predictions)
    left_out = 6 * elsewhere * (2 * 32 * 32 + 2 * 32 * 64 + 2 * 32 * phase.seq_len)
    assert step_flops(config.model, phase) + left_out > 1.3 * computed


@pytest.mark.parametrize(
    ("remat", "layers"), [pytest.param("dots", 3, marks=pytest.mark.slow), ("full", 2)]
)
def test_every_scanned_layer_is_computed_again(remat, layers):
    """Layers in a row compute no more: what the compiler merged would be computed once."""
    config = get_config()
    config.model.num_hidden_layers, config.model.remat = layers, remat
    phase, computed = config.phases[0], {}
    for scan_layers in (True, False):
        config.model.scan_layers = scan_layers
        computed[scan_layers] = flops(compile_phase(config, phase, jax.devices()[:1]).text)
    assert computed[True] >= computed[False] > 1.03 * step_flops(config.model, phase)


def test_memory_is_what_is_given_and_what_is_made_and_the_scratch():
    """What is made in the place of what is given counts once."""
    mesh = make_mesh(MeshConfig(fsdp=8), jax.devices())

    def leaf(*shape: int, axis: str | None = None) -> jax.ShapeDtypeStruct:
        sharding = NamedSharding(mesh, PartitionSpec(axis))
        return jax.ShapeDtypeStruct(shape, "float32", sharding=sharding)

    state = SimpleNamespace(params={"a": leaf(8, 5, axis="fsdp")}, opt_state=[leaf(6)])
    program: Any = SimpleNamespace(abstract=state)
    analysis = SimpleNamespace(
        argument_size_in_bytes=60,
        output_size_in_bytes=50,
        alias_size_in_bytes=44,
        temp_size_in_bytes=1000,
    )
    program_of_devices = SimpleNamespace(memory_analysis=lambda: analysis)
    found = _memory(program, {"ids": leaf(16, axis="fsdp")}, program_of_devices)
    given = Memory(parameters=20, optimizer=24, batch=8, activations=0)
    assert found == dataclasses.replace(given, activations=60 + 50 - 44 + 1000 - given.total)
    assert given.total == 20 + 24 + 8


def test_what_is_sharded_takes_a_share_of_the_memory(compiled):
    config = dataclasses.replace(get_config(), mesh=MeshConfig(data=2, fsdp=4))
    whole = compiled.memory
    sharded = compile_phase(config, config.phases[0], jax.devices()).memory
    assert sharded.parameters < 0.5 * whole.parameters
    assert sharded.optimizer < 0.5 * whole.optimizer
    assert sharded.batch == whole.batch


def test_a_mesh_or_batch_that_does_not_divide_is_refused():
    config = get_config()
    with pytest.raises(UserError, match="does not make 8 devices"):
        compile_phase(
            dataclasses.replace(config, mesh=MeshConfig(data=3)), config.phases[0], jax.devices()
        )
    small = dataclasses.replace(config.phases[0], batch_size=4)
    with pytest.raises(UserError, match=r"the batch at length 32=4 .* multiple of 8"):
        compile_phase(config, small, jax.devices())


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [("attention", "pallas", "runs on a TPU or GPU"), ("xla_options", "nonsense=1", "nonsense")],
)
def test_what_the_devices_do_not_have_is_refused_in_a_line(field, value, said):
    config = get_config()
    setattr(config.model if field == "attention" else config, field, value)
    with pytest.raises(UserError, match=f"config.*{field}.*{said}"):
        compile_phase(config, config.phases[0], jax.devices())


def test_programs_are_kept_in_a_directory_that_may_be_new_or_not(tmp_path, monkeypatch):
    """Those of a moment's compilation too; and wherever the process goes meanwhile."""
    told: dict[str, object] = {}
    monkeypatch.setattr(jax.config, "update", told.__setitem__)
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        keep_programs(Path("new/programs"))
        assert told == {
            "jax_compilation_cache_dir": str(tmp_path / "new/programs"),
            "jax_persistent_cache_min_compile_time_secs": 0.0,
        }
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"^--save=file/programs: Not a directory$"):
        keep_programs(Path("file/programs"))


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        (
            "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total "
            "memory required for HLO temporaries (635.25G) exceeds available HBM (15.75G).",
            635.25 * 2**30,
        ),
        ("RESOURCE_EXHAUSTED: Ran out of memory. Used 18.50M of 16.00M hbm.", 18.5 * 2**20),
        ("RESOURCE_EXHAUSTED: too much", 0),
    ],
)
def test_the_compiler_says_what_it_wanted(message, wanted):
    error = _compile_error(RuntimeError(message))
    assert isinstance(error, DoesNotFit)
    assert error.wanted == wanted


def test_a_step_for_which_there_is_no_room_is_no_traceback(monkeypatch):
    def lower(*arguments: object) -> None:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Used 18.50G of 16.00G hbm.")

    step: Any = SimpleNamespace(lower=lower)

    def program(config: Config, mesh: Mesh) -> Program:
        return pretraining_program(config, mesh)._replace(train_step=step)

    monkeypatch.setattr("bert_jax.planning.compile.pretraining_program", program)
    config = get_config()
    with pytest.raises(DoesNotFit) as told:
        compile_phase(config, config.phases[0], jax.devices())
    assert told.value.wanted == 18.5 * GIB


def test_another_failure_of_the_compiler_is_told():
    kernel = "RESOURCE_EXHAUSTED: E1001: Ran out of memory in memory space vmem while allocating"
    assert isinstance(_compile_error(RuntimeError(kernel)), UserError)
    error = _compile_error(RuntimeError("INTERNAL: it broke\nand how"))
    assert isinstance(error, UserError)
    assert "INTERNAL: it broke" in str(error)
