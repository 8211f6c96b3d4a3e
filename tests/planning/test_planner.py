"""What a plan says of a phase beside what its program computes."""

import dataclasses

import pytest
from small_run import get_config

from bert_jax.config import DataConfig
from bert_jax.planning.planner import PhasePlan, plan_recipe
from bert_jax.planning.roofline import Efficiency
from bert_jax.planning.topologies import parse_topologies


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
    assert plan.hlo_to_model is not None
    assert 1 <= plan.hlo_to_model <= 1.1
