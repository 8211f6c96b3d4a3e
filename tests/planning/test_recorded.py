"""The train steps of the recipes, compiled for TPUs: what they need is what was recorded."""

import json

import pytest
from recorded_plans import CASES, MORE_CASES, RECORDED, Case, measure_all

pytest.importorskip("libtpu", reason="the TPU compiler is not installed: the extra `tpu`")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

EXPECTED = json.loads(RECORDED.read_text())
RENEW = "python tests/recorded_plans.py records what is there now; say why it changed"


@pytest.mark.parametrize(
    "cases",
    [CASES, pytest.param(MORE_CASES, marks=pytest.mark.exhaustive)],
    ids=["base", "the others"],
)
def test_steps_need_what_was_recorded(cases: list[Case]):
    for name, found in measure_all(cases):
        told = f"{name}: {RENEW}"
        assert name in EXPECTED, told
        expected = EXPECTED[name]
        assert found["fits"] == expected["fits"], told
        assert found["bytes"] == pytest.approx(expected["bytes"], rel=0.02), told
        if not found["fits"]:
            continue
        # No recipe here rematerialises: nothing may be computed that the model does not need.
        assert 1 <= found["hlo_to_model"] <= 1.05, told
        assert found["hlo_to_model"] == pytest.approx(expected["hlo_to_model"], rel=2e-3), told
        kinds = {kind: of_kind["count"] for kind, of_kind in expected["collectives"].items()}
        assert {k: of["count"] for k, of in found["collectives"].items()} == kinds, told
        for kind, of_kind in found["collectives"].items():
            sent = expected["collectives"][kind]["bytes"]
            assert of_kind["bytes"] == pytest.approx(sent, rel=0.01), told
