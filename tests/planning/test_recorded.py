"""The train steps of the recipes, compiled for TPUs: what they need is what was recorded."""

import json
from collections.abc import Iterator
from concurrent.futures import Executor

import pytest
from recorded_plans import CASES, RECORDED, compiling_processes, measure, name_of

pytest.importorskip("libtpu", reason="the TPU compiler is not installed: the extra `tpu`")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

EXPECTED = json.loads(RECORDED.read_text())
RENEW = "python tests/recorded_plans.py records what is there now; say why it changed"


@pytest.fixture(scope="module")
def compiler() -> Iterator[Executor]:
    with compiling_processes(1) as pool:
        yield pool


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_a_step_needs_what_was_recorded(compiler, case):
    assert name_of(case) in EXPECTED, RENEW
    found, expected = compiler.submit(measure, case).result(), EXPECTED[name_of(case)]
    assert found["fits"] == expected["fits"], RENEW
    assert found["bytes"] == pytest.approx(expected["bytes"], rel=0.02), RENEW
    if not found["fits"]:
        return
    # No recipe here rematerialises: nothing may be computed that the model does not need.
    assert 1 <= found["hlo_to_model"] <= 1.05
    assert found["hlo_to_model"] == pytest.approx(expected["hlo_to_model"], rel=2e-3), RENEW
    kinds = {kind: told["count"] for kind, told in found["collectives"].items()}
    assert kinds == {kind: told["count"] for kind, told in expected["collectives"].items()}, RENEW
    for kind, told in found["collectives"].items():
        assert told["bytes"] == pytest.approx(expected["collectives"][kind]["bytes"], rel=0.01)
