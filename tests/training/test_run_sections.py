"""The sections that the reports of all runs have: their charts draw what the records say."""

import re

import pytest

from bert_jax.training.run_sections import metric_chart


def corners(drawing: str, color: str) -> list[tuple[float, float]]:
    """Those of the first path that is drawn in a CSS colour: its key comes after it."""
    path = re.findall(rf'<path d="([^"]*)"[^>]*stroke: var\(--{color}\)', drawing)[0]
    return [(float(x), float(y)) for x, y in re.findall(r"[ML] ([\d.]+) ([\d.]+)", path)]


def test_a_level_holds_from_its_step_until_that_of_the_next():
    records = [
        {"kind": "train", "step": 20, "accuracy": 0.1},
        {"kind": "train", "step": 100, "accuracy": 0.2},
    ]
    levels = [{"step": 0, "accuracy": 0.1}, {"step": 40, "accuracy": 0.2}]
    drawing = metric_chart(records, "t", "accuracy", heldout="dev", level=("trivial", levels))
    (left, low), (right, high) = corners(drawing, "train")
    begin, middle = (left + (right - left) * (step - 20) / 80 for step in (0, 40))
    expected = [(begin, low), (middle, low), (middle, high), (right, high)]
    assert [value for corner in corners(drawing, "muted") for value in corner] == pytest.approx(
        [value for corner in expected for value in corner], abs=1e-3
    )


@pytest.mark.parametrize("levels", [[], [{"step": 0}], [{"step": 0, "accuracy": "<b>"}]])
def test_a_level_that_is_no_number_is_left_out(levels):
    records = [{"kind": "eval", "step": 10, "accuracy": 0.1}]
    drawing = metric_chart(records, "t", "accuracy", heldout="dev", level=("trivial", levels))
    assert "trivial" not in drawing
    assert "svg" in drawing
