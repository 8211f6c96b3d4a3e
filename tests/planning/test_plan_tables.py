"""The figures of a plan in the units that its text tells them in."""

import dataclasses

from bert_jax.planning.compile import Memory
from bert_jax.planning.planner import PhasePlan, Plan
from bert_jax.planning.tables import plan_text, ranking

GIB = 2**30
PHASE = PhasePlan(
    seq_len=128,
    batch_size=256,
    steps=900_000,
    packed=False,
    fits=True,
    memory=Memory(parameters=GIB, optimizer=2 * GIB, batch=GIB // 4, activations=7 * GIB // 2),
    model_flops_per_token=0.545e9,
    hlo_to_model=1.25,
    bytes_moved=40_000_000_000,
    intensity=112.0,
    collectives={"all-reduce": {"count": 3, "bytes": 440_000_000}},
    seconds={"compute": 0.01234, "memory": 0.025, "interconnect": 0.005, "step": 0.03},
    limit="memory",
    tokens_per_second=1.5e6,
    mfu=0.43,
    input_tokens_per_second=187e3,
)
# The cores of a v3 are devices: two a chip.
PLAN = Plan(
    topology="v3:4x4",
    chips=16,
    device_kind="TPU v3",
    device_memory=16 * GIB,
    mesh={"data": 32, "fsdp": 1, "tensor": 1},
    compiled_for="TPU v3",
    phases=[PHASE],
    days=2.5,
    cost=1234.0,
)
TEXT = """\
v3:4x4: 16 chips (TPU v3), mesh data 32 x fsdp 1 x tensor 1
  phase 1     length 128, 900,000 steps of 256 sequences, 8 a device
  memory      6.75 GiB of 16.00 GiB a device (parameters 1.00, optimizer 2.00, batch 0.25, \
activations 3.50)
  work        0.545 GFLOPs a token, HLO/model 1.250; a device moves 40.00 GB a step, 112 FLOPs a \
byte
  all-reduce  3 a step, 440.0 MB
  time        30.00 ms a step at best (bounds: compute 12.34, memory 25.00, interconnect 5.00); \
limited by memory
  speed       1.5M tokens/s, MFU 43%; each host supplies 187k tokens/s
  recipe      2.5 days (60.0 hours, 960 chip-hours), 1,234 at the price given"""


def test_all_that_is_known_is_told_in_its_units():
    assert plan_text(PLAN) == TEXT


def test_plans_are_ranked_by_their_days_and_those_that_do_not_fit_come_last():
    large = dataclasses.replace(PHASE, fits=False, seconds={}, limit=None, mfu=None)
    unfit = dataclasses.replace(PLAN, topology="v2:2x2", phases=[large], days=None, cost=None)
    slow = dataclasses.replace(PLAN, topology="v2:4x4", days=12.0)
    _, first, second, last = (line.split() for line in ranking([unfit, slow, PLAN]).splitlines())
    figures = ["16", "32x1x1", "6.8G", "30.00", "memory", "1.5M", "43%"]
    assert first == ["v3:4x4", *figures, "2.5", "1,234"]
    assert second == ["v2:4x4", *figures, "12", "1,234"]
    assert last == ["v2:2x2", "16", "32x1x1", "too", "large", "-", "-", "1.5M", "-", "-", "-"]
