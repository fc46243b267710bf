"""The report's charts: inline SVG whose inks follow the page, in light, dark and print.

A chart is drawn in marker colours, which are then replaced by CSS: `currentColor` and variables of
the page. Equal numbers give equal bytes: no dates, ids from a fixed salt.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from html import escape
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

INK, LINE, FIRST, SECOND = "#010101", "#020202", "#030303", "#040404"
_CSS = {INK: "currentColor", LINE: "var(--line)", FIRST: "var(--first)", SECOND: "var(--second)"}
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "bagpipe",
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": LINE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "lines.linewidth": 1.8,
    "path.simplify": True,
}
MAX_POINTS = 400
"""Of a curve; more would weigh the page down and cannot be seen."""


def curve(
    name: str, points: list[tuple[float, float]], *, title: str, x: str, y: str, log: bool = False
) -> str:
    """A line through `points`; `name` is unique on the page, `y` names the unit.

    With `log`, values that span more than two powers of ten get a logarithmic axis.
    """
    thinned = _thinned(points)

    def draw(axes: Axes) -> None:
        marker = "o" if len(thinned) < 12 else ""
        axes.plot(*zip(*thinned, strict=True), color=FIRST, marker=marker, markersize=4)
        axes.set(title=title, xlabel=x, ylabel=y)
        axes.xaxis.set_major_locator(_whole_steps())
        values = [value for _, value in thinned]
        if log and 0 < min(values) < max(values) / 100:
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)

    if not thinned:
        return ""
    (first, start), (last, end) = points[0], points[-1]
    alt = f"{title}: {start:.3g} at {x} {first:g}, {end:.3g} at {x} {last:g}."
    return _svg(name, draw, alt)


def curves(
    name: str, groups: dict[str, list[tuple[float, float]]], *, title: str, x: str, y: str
) -> str:
    """Up to four lines through the points of each group, told apart by their strokes too."""
    thinned = {label: _thinned(points) for label, points in groups.items() if points}
    styles = [(FIRST, "-"), (SECOND, "--"), (FIRST, "-."), (INK, ":")]

    def draw(axes: Axes) -> None:
        for (label, points), (color, line) in zip(thinned.items(), styles, strict=False):
            # A line without a second point would be invisible.
            marker = "o" if len(points) == 1 or (len(points) < 12 and line == "-") else ""
            xs, ys = zip(*points, strict=True)
            axes.plot(xs, ys, line, color=color, marker=marker, markersize=4, label=label)
        axes.set(title=title, xlabel=x, ylabel=y)
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(_whole_steps())
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=4, fontsize=9)

    if not thinned:
        return ""
    spoken = "; ".join(
        f"{label} {points[0][1]:.3g} at {x} {points[0][0]:g}, {points[-1][1]:.3g} at {x}"
        f" {points[-1][0]:g}"
        for label, points in thinned.items()
    )
    return _svg(name, draw, f"{title}, {y}: {spoken}.")


def _whole_steps() -> MaxNLocator:
    """Ticks at whole steps alone, also where there is one."""
    return MaxNLocator(6, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1)


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most `MAX_POINTS` of them and the last."""
    kept = points[:: -(-len(points) // MAX_POINTS)] if points else []
    return kept if not points or kept[-1] == points[-1] else [*kept, points[-1]]


def recalls(name: str, groups: dict[str, dict[str, float]], chance: dict[str, float]) -> str:
    """Bars of R@K for each direction, with a line at chance level."""
    ks = sorted((key for key in chance if key.startswith("R@")), key=lambda key: int(key[2:]))
    width = 0.8 / len(groups)

    def draw(axes: Axes) -> None:
        for place, (label, values) in enumerate(groups.items()):
            offsets = [i - 0.4 + width * (place + 0.5) for i in range(len(ks))]
            heights = [100 * values[k] for k in ks]
            color = (FIRST, SECOND)[place % 2]
            bars = axes.bar(offsets, heights, width * 0.92, color=color, label=label)
            axes.bar_label(bars, fmt="%.0f", color=INK, fontsize=9, padding=1)
        for i, k in enumerate(ks):
            level = [100 * chance[k]] * 2
            name = "chance" if i == 0 else None  # once in the legend
            axes.plot([i - 0.45, i + 0.45], level, color=INK, linestyle=":", label=name)
        axes.set(title="Retrieval on held-out clips", ylabel="found (% of queries)", ylim=(0, 112))
        axes.set_xticks(range(len(ks)), [f"among first {k[2:]}" for k in ks])
        axes.set_yticks(range(0, 101, 20))
        axes.grid(visible=False, axis="x")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=3, fontsize=9)

    spoken = "; ".join(
        f"{label} " + ", ".join(f"{k} {values[k]:.1%}" for k in ks)
        for label, values in groups.items()
    )
    levels = ", ".join(f"{k} {chance[k]:.1%}" for k in ks)
    return _svg(name, draw, f"Retrieval: {spoken}. Chance: {levels}.")


def histogram(name: str, counts: list[int], *, title: str, x: str, y: str) -> str:
    """Bars at 0, 1, 2, ... of `counts`; an empty bar at 0 is left out."""
    first = 1 if counts and not counts[0] else 0
    places = list(range(first, len(counts)))

    def draw(axes: Axes) -> None:
        axes.bar(places, counts[first:], 0.85, color=FIRST)
        axes.set(title=title, xlabel=x, ylabel=y)
        axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.grid(visible=False, axis="x")

    if not any(counts):
        return ""
    spoken = ", ".join(f"{place}: {counts[place]}" for place in places)
    return _svg(name, draw, f"{title}, {y} by {x}. {spoken}.")


def _svg(name: str, draw: Callable[[Axes], None], alt: str) -> str:
    """Draw on a fresh figure of phone width; ids get `name` as their prefix."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(4.4, 2.7), layout="constrained")
        draw(figure.add_subplot())
        buffer = io.StringIO()
        nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
        figure.savefig(buffer, format="svg", metadata=nothing)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", svg)
    for marker, css in _CSS.items():
        svg = svg.replace(marker, css)
    label = f'<svg role="img" aria-label="{escape(alt)}"'
    return svg.replace("<svg", label, 1)
