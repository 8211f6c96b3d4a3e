"""Charts as inline SVG whose colours are CSS variables, so that a page can be dark.

matplotlib is imported where it draws, for it takes longer to load than a `--help` may.
"""

import html
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# matplotlib wants real colours: each stands for a CSS variable of the page and is replaced by it.
_COLORS = {
    "#010203": "var(--text)",
    "#020304": "var(--muted)",
    "#030405": "var(--rule)",
    "#040506": "var(--train)",
    "#050607": "var(--heldout)",
}
_TEXT, _MUTED, _RULE, _TRAIN, _HELDOUT = _COLORS
_DASHES = (0, (4, 3))
# More points than a chart has pixels only make the page heavy.
_MOST_POINTS = 400


@dataclass(frozen=True)
class Curve:
    """Values at steps; NaN is a gap. Held-out values are few and drawn with markers."""

    label: str
    steps: Sequence[int]
    values: Sequence[float]
    heldout: bool = False


def line_chart(
    title: str,
    curves: Sequence[Curve],
    *,
    levels: Sequence[Curve] = (),
    boundaries: Sequence[int] = (),
    percentages: bool = False,
    from_zero: bool = False,
) -> str:
    """An `<svg>` element with the curves over steps; equal arguments give equal bytes.

    Args:
      title: what the values are; the element's accessible name, not drawn.
      curves: drawn in order; more than 400 points of one are averaged in groups.
      levels: drawn through all of their points, dashed: what needs no training.
      boundaries: steps after which another phase begins, marked by vertical lines.
      percentages: values are shares of 0 to 1 and labelled as percentages.
      from_zero: the vertical axis starts at 0, for amounts.
    """
    from matplotlib.ticker import MaxNLocator

    def draw(axes: "Axes") -> None:
        for curve in curves:
            _draw(axes, curve)
        for level in levels:
            style = {"color": _MUTED, "linewidth": 1.2, "linestyle": _DASHES}
            axes.plot(level.steps, level.values, label=level.label, **style)
        for step in boundaries:
            axes.axvline(step, color=_MUTED, linewidth=1, linestyle=(0, (1, 2)))
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.yaxis.set_major_formatter(_percent if percentages else _amount)
        if from_zero:
            axes.set_ylim(bottom=0)

    return _svg(title, draw)


def bar_chart(
    title: str,
    edges: Sequence[float] | np.ndarray,
    counts: Mapping[str, Sequence[int] | np.ndarray],
    *,
    percentages: bool = False,
) -> str:
    """An `<svg>` element: a histogram of up to two groups, the first below the second.

    Args:
      title: as for `line_chart`.
      edges: of the bins, rising, [bins + 1].
      counts: label -> how many of the group are in each bin, [bins].
      percentages: the edges are shares of 0 to 1 and labelled as percentages.
    """
    from matplotlib.ticker import MaxNLocator

    def draw(axes: "Axes") -> None:
        below = np.zeros(len(edges) - 1)
        widths = np.diff(edges)
        for (label, heights), color in zip(counts.items(), (_TRAIN, _HELDOUT), strict=False):
            style = {"width": widths, "align": "edge", "color": color, "linewidth": 0}
            axes.bar(edges[:-1], heights, bottom=below, label=label, **style)
            below = below + np.asarray(heights)
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.xaxis.set_major_formatter(_percent if percentages else _amount)

    return _svg(title, draw)


def reliability_chart(
    title: str, edges: np.ndarray, shares: np.ndarray, confidences: np.ndarray
) -> str:
    """An `<svg>` element: how often what is said with a probability is so.

    Args:
      title: as for `line_chart`.
      edges: of the bins of probability, [bins + 1].
      shares: of what is so in each bin, [bins]; NaN where a bin is empty.
      confidences: the mean probability in each bin, [bins]; NaN where it is empty.
    """

    def draw(axes: "Axes") -> None:
        style = {"width": np.diff(edges), "align": "edge", "color": _RULE, "linewidth": 0}
        axes.bar(edges[:-1], np.nan_to_num(shares), **style)
        axes.plot(
            [0, 1], [0, 1], color=_MUTED, linewidth=1.2, linestyle=_DASHES, label="calibrated"
        )
        axes.plot(
            confidences,
            shares,
            color=_TRAIN,
            marker="o",
            markersize=4,
            linewidth=1.4,
            label="model",
        )
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1.02)
        axes.xaxis.set_major_formatter(_percent)
        axes.yaxis.set_major_formatter(_percent)

    return _svg(title, draw)


def scatter_chart(title: str, true: np.ndarray, predicted: np.ndarray) -> str:
    """An `<svg>` element: predicted values, float [n], over true ones, and where they are equal."""

    def draw(axes: "Axes") -> None:
        ends = [min(true.min(), predicted.min()), max(true.max(), predicted.max())]
        axes.plot(ends, ends, color=_MUTED, linewidth=1.2, linestyle=_DASHES, label="equal")
        axes.plot(
            true,
            predicted,
            color=_TRAIN,
            marker="o",
            markersize=3,
            markeredgewidth=0,
            linestyle="none",
            alpha=0.4,
            label="example",
        )

    return _svg(title, draw)


def _svg(title: str, draw: "Callable[[Axes], None]") -> str:
    """The `<svg>` element of what `draw` draws, in the style of all charts."""
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    # Text stays text, and the ids of clip paths differ from chart to chart of a page.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": ascii(title), "font.size": 9}):
        figure = Figure(figsize=(5.6, 2.7), layout="constrained")
        axes = figure.add_subplot()
        axes.xaxis.set_major_formatter(_amount)
        axes.yaxis.set_major_formatter(_amount)
        axes.yaxis.set_major_locator(MaxNLocator(5))
        draw(axes)
        axes.set_axisbelow(True)
        axes.grid(axis="y", color=_RULE, linewidth=0.8)
        axes.tick_params(color=_RULE, labelcolor=_MUTED, length=0)
        axes.spines[["top", "left", "right"]].set_visible(False)
        axes.spines["bottom"].set_color(_RULE)
        axes.margins(x=0.01)
        if (named := len(axes.get_legend_handles_labels()[1])) > 1:
            # Above the axes, for in a full histogram there is no room.
            figure.legend(loc="outside upper right", ncols=named, frameon=False, labelcolor=_TEXT)
        image = io.StringIO()
        figure.savefig(
            image, format="svg", transparent=True, metadata={"Date": None, "Creator": None}
        )
    return _inline(image.getvalue(), title)


def _draw(axes: "Axes", curve: Curve) -> None:
    steps, values = _thin_out(np.asarray(curve.steps, float), np.asarray(curve.values, float))
    if curve.heldout:
        style = {"color": _HELDOUT, "marker": "o", "markersize": 3.5, "linewidth": 1.8}
    else:
        style = {"color": _TRAIN, "linewidth": 1.4}
    axes.plot(steps, values, label=curve.label, **style)


def _amount(value: float, _: float) -> str:
    """A tick's label: 0.0005, 12, 4.5k, 1.2M."""
    for size, suffix in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{suffix}"
    return f"{value:.3g}"


def _percent(value: float, _: float) -> str:
    return f"{100 * value:.3g}%"


def _thin_out(steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means over equal groups of points; float [n] in, at most `_MOST_POINTS` out."""
    size = -(-len(steps) // _MOST_POINTS)
    if size <= 1:
        return steps, values
    groups = range(0, len(steps), size)
    known = [values[i : i + size][np.isfinite(values[i : i + size])] for i in groups]
    means = [group.mean() if len(group) else np.nan for group in known]
    return np.array([steps[i : i + size].mean() for i in groups]), np.array(means)


def _inline(svg: str, title: str) -> str:
    """The drawing as an element of an HTML page: no prologue, metadata, fonts or element ids."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r"font-family: [^;]*; ", "", svg)
    view = re.search(r'viewBox="[^"]*"', svg)
    assert view is not None
    body = svg[svg.index(">") + 1 :]
    svg = f'<svg role="img" aria-label="{html.escape(title)}" {view[0]}>{body}'
    for color, variable in _COLORS.items():
        svg = svg.replace(color, variable)
    return svg
