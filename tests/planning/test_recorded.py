"""The train steps of the recipes, compiled for TPUs: what they need is what was recorded."""

import json
from typing import Any

import pytest
from recorded_plans import CASES, RECORDED, measure_all, name_of

pytest.importorskip("libtpu", reason="the TPU compiler is not installed: the extra `tpu`")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

EXPECTED = json.loads(RECORDED.read_text())
RENEW = "python tests/recorded_plans.py records what is there now; say why it changed"


@pytest.fixture(scope="module")
def measured() -> dict[str, dict[str, Any]]:
    """All of them at once: two processes compile."""
    return dict(measure_all())


@pytest.mark.parametrize("name", list(map(name_of, CASES)))
def test_a_step_needs_what_was_recorded(measured, name):
    assert name in EXPECTED, RENEW
    found, expected = measured[name], EXPECTED[name]
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
