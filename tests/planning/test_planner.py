"""What a plan says of a phase beside what its program computes."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import pytest
from small_run import get_config

from bert_jax.config import DataConfig
from bert_jax.planning import planner
from bert_jax.planning.chips import CHIPS
from bert_jax.planning.compile import CompiledPhase, DoesNotFit, Memory
from bert_jax.planning.kernels import Kernel
from bert_jax.planning.planner import PhasePlan, Plan, plan_recipe
from bert_jax.planning.roofline import Efficiency, Place
from bert_jax.planning.topologies import parse_topologies

# Programs of eight devices that move this, three times a step, and compute twice as long as that.
MOVED = 10**9
GIB = 2**30
Planned = Callable[..., tuple[Plan, list[str]]]


def planned(data: DataConfig) -> PhasePlan:
    """The first phase on a CPU, of a model whose head is most of the work."""
    config = dataclasses.replace(get_config(), data=data)
    config.model = dataclasses.replace(config.model, vocab_size=2000)
    config.phases = (dataclasses.replace(config.phases[0], batch_size=2),)
    [topology] = parse_topologies("cpu:1")
    return plan_recipe(config, topology, efficiency=Efficiency()).phases[0]


@pytest.mark.parametrize("packing", [False, True])
def test_the_models_work_is_that_of_the_rows_that_are_computed(packing):
    """A packed row has more predictions than the one sequence of an unpacked one."""
    plan = planned(DataConfig(packing=packing))
    assert plan.packed == packing
    assert plan.hlo_to_model is not None
    assert 1 <= plan.hlo_to_model <= 1.1


def computed(kind: str) -> int:
    """FLOPs of a kernel that takes twice as long as its traffic; 0 where no peak is known."""
    return int(2 * MOVED / CHIPS[kind].bandwidth * (CHIPS[kind].flops or 0))


@pytest.fixture
def plan_of(monkeypatch: pytest.MonkeyPatch) -> Planned:
    """Plans the small run, whose two programs are not compiled but take so much of a device.

    Returns the plan, and the lengths of the phases that something was looked for: "what length".
    """

    def plan_of(name: str, *memory: int | DoesNotFit, **options: Any) -> tuple[Plan, list[str]]:
        [topology] = parse_topologies(name)
        found, asked = iter(memory), []
        work = [Kernel(flops=computed(topology.kind), bytes=MOVED, times=3)]

        def compile_phase(config, phase, devices):
            taken = next(found)
            if isinstance(taken, DoesNotFit):
                raise taken
            sizes = Memory(parameters=taken, optimizer=0, batch=0, activations=0)
            return CompiledPhase(memory=sizes, text="", seconds=1.5)

        def remedies(config, phase, devices, limit):
            asked.append(f"remedies {phase.seq_len}")
            return {"--config.model.remat=full": limit / 2}

        def largest_batch(config, phase, devices, limit, taken):
            asked.append(f"batch {phase.seq_len}")
            return 7

        for fake in (compile_phase, remedies, largest_batch):
            monkeypatch.setattr(planner, fake.__name__, fake)
        for fake, result in [
            ("kernels", work),
            ("collectives", []),
            ("describe_devices", jax.devices()),
            ("device_places", [Place(0, (0, 0))] * 8),
        ]:
            monkeypatch.setattr(planner, fake, lambda *_, result=result: result)
        settings: dict[str, Any] = {"efficiency": Efficiency()} | options
        return plan_recipe(get_config(), topology, **settings), asked

    return plan_of


@pytest.mark.parametrize(
    ("name", "chips", "slower"),
    # A v3's cores are devices; an H200 takes twice as long for float32.
    [("v3:2x2", 4, 1), ("h200:8", 8, 2)],
)
def test_time_and_cost_are_those_of_all_steps_on_all_chips(name, chips, slower, plan_of):
    kind = name.split(":")[0]
    plan, _ = plan_of(name, GIB, GIB, price=5.0, efficiency=Efficiency(compute=0.5))
    step = 3 * MOVED / CHIPS[kind].bandwidth * 2 * 2 * slower
    assert (plan.chips, plan.device_memory) == (chips, CHIPS[kind].memory)
    assert (plan.device_kind, plan.compiled_for) == (CHIPS[kind].device_kind, "cpu")
    assert plan.days == pytest.approx((8 + 4) * step / 86_400)
    assert plan.cost == pytest.approx((8 + 4) * step / 3600 * 5 * chips)
    for phase, tokens in zip(plan.phases, (32 * 16, 64 * 8), strict=True):
        model = phase.model_flops_per_token * tokens
        assert (phase.limit, phase.compile_seconds) == ("compute", 1.5)
        assert phase.seconds["step"] == pytest.approx(step)
        assert phase.hlo_to_model == pytest.approx(3 * computed(kind) * 8 / model)
        assert (phase.bytes_moved, phase.intensity) == (3 * MOVED, computed(kind) / MOVED)
        assert phase.tokens_per_second == pytest.approx(tokens / step)
        assert phase.input_tokens_per_second == phase.tokens_per_second, "all in one host"
        assert phase.mfu == pytest.approx(model / step / 8 / (CHIPS[kind].flops or 0))


def test_without_a_price_there_is_no_cost_and_without_a_peak_no_time(plan_of):
    plan, _ = plan_of("v3:2x2", GIB, GIB)
    assert plan.days
    assert plan.cost is None
    plan, _ = plan_of("cpu:8", GIB, GIB, price=5.0)
    assert (plan.days, plan.cost, plan.phases[0].mfu) == (None, None, None)


@pytest.mark.parametrize("wanted", [16 * GIB + 1, 635 * GIB])
@pytest.mark.parametrize("compiled", [True, False])
def test_a_phase_that_does_not_fit_is_told_with_what_would_help(wanted, compiled, plan_of):
    taken = wanted if compiled else DoesNotFit(wanted)
    plan, asked = plan_of("v3:2x2", GIB, taken, price=5.0, search=True)
    small, large = plan.phases
    assert (small.fits, large.fits) == (True, False)
    assert (large.wanted, large.memory is not None) == (wanted, compiled)
    assert asked == ["batch 32", "remedies 64"]
    assert (small.remedies, large.remedies) == ({}, {"--config.model.remat=full": 8 * GIB})
    assert (small.largest_batch, large.largest_batch) == (7, None)
    assert (plan.days, plan.cost) == (None, None)


def test_all_of_the_memory_is_enough_and_no_more_is_looked_for_unasked(plan_of):
    plan, asked = plan_of("v3:2x2", 16 * GIB, 16 * GIB)
    assert [phase.fits for phase in plan.phases] == [True, True]
    assert asked == []
    plan, asked = plan_of("cpu:8", 10**15, 10**15, search=True)
    assert [phase.largest_batch for phase in plan.phases] == [None, None]
    assert asked == []
