"""Charts of a comparison as SVG text."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from studies.report.estimates import Estimate
from studies.report.summary import MethodSummary, Report

INK = "#222222"
_COLOURS = (
    "#8c8c8c",
    "#c9a227",
    "#c1543c",
    "#7aa6c2",
    "#1f4e79",
    "#4c8c4a",
    "#8e5ea2",
    "#d17d2f",
    "#2a9d8f",
    "#e07aa8",
    "#6b4226",
    "#5b6ee1",
    "#a5c739",
    "#b3a2e0",
    "#7d7a2e",
    "#35c4de",
)
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_LINES = ("-", "--", ":", "-.", (0, (6, 2, 1, 2, 1, 2)))
STYLE: Final[dict[Any, Any]] = {
    "font.size": 10,
    "axes.edgecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e5e5e5",
    # Text stays text, so that a reader can search the page.
    "svg.fonttype": "none",
    # A fixed salt, and no date below: equal results give equal bytes.
    "svg.hashsalt": "tessera",
}


@dataclass(frozen=True, slots=True)
class ChartStyle:
    """The colour, marker and line of a method, distinct without colours too."""

    colour: str
    marker: str
    line: Any

    @classmethod
    def nth(cls, i: int) -> ChartStyle:
        return cls(_COLOURS[i % len(_COLOURS)], _MARKERS[i % len(_MARKERS)], _LINES[i % len(_LINES)])

    def curve(
        self,
        axes: Axes,
        x: Sequence[float],
        mean: Sequence[float],
        low: Sequence[float],
        high: Sequence[float],
        label: str,
    ) -> None:
        axes.plot(
            x,
            mean,
            marker=self.marker,
            markersize=5,
            # About ten markers: in a long curve more would hide the line.
            markevery=max(1, len(x) // 10),
            linestyle=self.line,
            color=self.colour,
            label=label,
        )
        axes.fill_between(x, low, high, color=self.colour, alpha=0.12, linewidth=0)


def chart_styles(report: Report) -> dict[str, ChartStyle]:
    """Return the style of each method, the same in all charts."""
    return {m.method: ChartStyle.nth(i) for i, m in enumerate(report.methods)}


def as_svg(figures: Mapping[str, Figure]) -> dict[str, str]:
    """Return pictures by name, as SVG for a page."""
    with mpl.rc_context(STYLE):
        return {name: svg(figure) for name, figure in figures.items()}


def draw(report: Report) -> dict[str, str]:
    """Return all charts by name, as SVG for a page; a chart without data is left out."""
    styles = chart_styles(report)
    with mpl.rc_context(STYLE):
        pictures = {
            "curves": svg(_curves(report.methods, styles)),
            "methods": svg(_methods(report, styles)),
        }
        if any(method.latecomers for method in report.methods):
            pictures["late"] = svg(_late(report.methods, styles))
        if any(method.bytes_up for method in report.methods):
            pictures["bytes"] = svg(_bytes(report.methods))
    return pictures


def _curves(methods: Sequence[MethodSummary], styles: Mapping[str, ChartStyle]) -> Figure:
    """Draw the founders' mean losses as served and after local steps; the band is one standard error."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    grid = figure.subplots(1, 2, sharey=True)
    for method in methods:
        for axes, curve in zip(grid, (method.served, method.trained), strict=True):
            _curve(axes, curve.steps, curve.loss, styles[method.method], method.method)
    for axes, state in zip(grid, ("as served", "after local steps"), strict=True):
        axes.set(xlabel="local steps so far")
        axes.set_title(state, fontsize=10)
        axes.set_xlim(left=0)
    grid[0].set_ylabel("mean test loss")
    legend_beside(figure, grid[0])
    return figure


def _methods(report: Report, styles: Mapping[str, ChartStyle]) -> Figure:
    methods = report.methods
    figure = Figure(figsize=(7.2, 0.6 + 0.5 * len(methods)), layout="constrained")
    axes = figure.subplots()
    places = range(len(methods), 0, -1)
    for place, method in zip(places, methods, strict=True):
        axes.barh(
            place,
            method.loss.mean.mean,
            0.6,
            xerr=method.loss.mean.error,
            color=styles[method.method].colour,
            ecolor=INK,
        )
        axes.plot(method.loss.worst.mean, place, "D", color=INK, markeredgecolor="white", markersize=6)
    axes.set_yticks(list(places), [method.method for method in methods])
    axes.set(xlabel="test loss: mean (bar), worst client (mark)")
    axes.set_xlim(left=0)
    axes.grid(visible=False, axis="y")
    return figure


def _late(methods: Sequence[MethodSummary], styles: Mapping[str, ChartStyle]) -> Figure:
    """Draw the loss of each late joiner over its own steps, with the start."""
    names = list(dict.fromkeys(late.name for method in methods for late in method.latecomers))
    figure = Figure(figsize=(9.2, 3.6 * len(names)), layout="constrained")
    grid = figure.subplots(len(names), squeeze=False)
    for axes, name in zip(grid[:, 0], names, strict=True):
        for method in methods:
            for late in method.latecomers:
                if late.name == name:
                    _curve(axes, late.curve.steps, late.curve.loss, styles[method.method], method.method)
        axes.set(xlabel=f"{name}'s own local steps", ylabel="test loss")
    legend_beside(figure, grid[0, 0])
    return figure


def _bytes(methods: Sequence[MethodSummary]) -> Figure:
    drawn_methods = [method for method in methods if method.bytes_up]
    figure = Figure(figsize=(6.4, 0.8 + 0.6 * len(drawn_methods)), layout="constrained")
    axes = figure.subplots()
    for offset, direction, colour in ((0.2, "down", "#7aa6c2"), (-0.2, "up", "#1f4e79")):
        values = [(m.bytes_up if direction == "up" else m.bytes_down) / 1000 for m in drawn_methods]
        places = [len(drawn_methods) - i + offset for i in range(len(drawn_methods))]
        bars = axes.barh(places, values, 0.38, color=colour, label=direction)
        axes.bar_label(bars, fmt="%.1f kB", padding=4, fontsize=8)
    axes.set_yticks(
        [len(drawn_methods) - i for i in range(len(drawn_methods))],
        [method.method for method in drawn_methods],
    )
    axes.set(xlabel="kB per client and round (encoded bodies)")
    axes.margins(x=0.2)
    axes.grid(visible=False, axis="y")
    axes.legend(frameon=False, fontsize=9, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return figure


def _curve(
    axes: Axes, steps: Sequence[float], values: Sequence[Estimate], style: ChartStyle, label: str
) -> None:
    mean = [value.mean for value in values]
    # One seed has no error; its band has no width.
    low = [value.mean - (value.error or 0.0) for value in values]
    high = [value.mean + (value.error or 0.0) for value in values]
    style.curve(axes, steps, mean, low, high, label)


def legend_beside(figure: Figure, axes: Axes) -> None:
    """Place the legend to the right of the figure, outside all axes."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=9, handlelength=4)


def svg(figure: Figure) -> str:
    """Return the figure as SVG without the XML prolog, which is invalid inside a page."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    # Without the XML head, which is no HTML.
    return re.sub(r"^.*?(?=<svg)", "", text.getvalue(), count=1, flags=re.DOTALL)
