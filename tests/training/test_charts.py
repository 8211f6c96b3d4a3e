"""Charts draw what they are given, in the page's colours."""

import re

import numpy as np
import pytest

from bert_jax.training.charts import (
    Curve,
    _amount,
    _percent,
    _thin_out,
    bar_chart,
    line_chart,
)


def path_of(svg: str, color: str) -> list[tuple[float, float]]:
    """Corners of the longest path drawn in a CSS colour."""
    paths = re.findall(rf'<path d="([^"]*)"[^>]*stroke: var\(--{color}\)', svg)
    corners = [re.findall(r"[ML] ([\d.]+) ([\d.]+)", path) for path in paths]
    return [(float(x), float(y)) for x, y in max(corners, key=len)]


def test_a_curve_is_drawn_to_scale():
    values = [1.0, 3.0, 2.0, 2.5]
    svg = line_chart("t", [Curve("training", [0, 10, 20, 40], values)])
    x, y = np.array(path_of(svg, "train")).T
    assert np.corrcoef(x, [0, 10, 20, 40])[0, 1] == pytest.approx(1)
    assert np.corrcoef(y, values)[0, 1] == pytest.approx(-1), "down is more in SVG"


def test_a_gap_is_not_bridged():
    values = [1.0, 2.0, float("nan"), 4.0, 5.0]
    svg = line_chart("t", [Curve("training", range(5), values)])
    line = re.findall(r'<path d="([^"]*)"[^>]*stroke: var\(--train\)', svg)
    assert max(path.count("M") for path in line) == 2


def test_levels_boundaries_and_labels():
    curves = [Curve("training", [0, 9], [0.1, 0.2]), Curve("a <b>", [0, 9], [0.1, 0.2], True)]
    plain = line_chart("t", curves, percentages=True)
    level = Curve("most frequent", [0, 9], [0.15, 0.15])
    marked = line_chart("t", curves, levels=[level], boundaries=[5])
    dashes = "stroke-dasharray"
    assert marked.count(dashes) == plain.count(dashes) + 3, "level, its key, and boundary"
    assert "most frequent" in marked
    assert "a &lt;b&gt;" in plain
    assert "20%" in plain
    assert "var(--heldout)" in plain
    assert not re.search(r"#0\d0\d0\d", plain), "no stand-in colour is left"


def test_title_is_the_accessible_name_and_is_escaped():
    assert 'aria-label="&lt;a &amp; &quot;b&quot;&gt;"' in line_chart('<a & "b">', [])


def test_amounts_start_at_zero():
    curve = Curve("training", [0, 1, 2], [100.0, 101.0, 102.0])
    assert ">0</text>" not in line_chart("t", [Curve("training", [5, 6, 7], curve.values)])
    assert ">0</text>" in line_chart(
        "t", [Curve("training", [5, 6, 7], curve.values)], from_zero=True
    )


def test_many_points_become_means_of_groups():
    values = np.arange(1000.0)
    values[7] = np.nan
    steps, means = _thin_out(np.arange(1000.0), values)
    assert len(steps) == 334
    assert (steps[0], means[0]) == (1.0, 1.0)
    assert means[2] == pytest.approx((6 + 8) / 2), "what is not known does not count"
    assert means[-1] == 999.0


def test_tick_labels():
    numbers = (0, 5e-4, 12.5, 4500, 1_200_000)
    assert [_amount(n, 0) for n in numbers] == ["0", "0.0005", "12.5", "4.5k", "1.2M"]
    assert _percent(0.0025, 0) == "0.25%"


def test_names_of_groups_stand_above_the_bars():
    svg = bar_chart("Lengths", [0, 1, 2], {"right": [9, 9], "wrong": [1, 2]})
    # What is drawn inside the axes is clipped to them; y grows downwards.
    bars = re.findall(r'<path d="([^"]*)" clip-path="[^"]*" style="fill: var\(', svg)
    assert len(bars) == 4
    top = min(float(y) for bar in bars for y in re.findall(r"[ML] [\d.]+ ([\d.]+)", bar))
    names = re.findall(r'y="([\d.]+)"[^>]*>(right|wrong)<', svg)
    assert [name for _, name in names] == ["right", "wrong"]
    assert all(float(y) < top for y, _ in names)
