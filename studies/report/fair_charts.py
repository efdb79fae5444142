"""Pictures of a fair comparison: scores over rounds and over bytes, and differences to the control."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter, LogLocator, MaxNLocator, NullFormatter

from studies.report.charts import INK, ChartStyle, legend_beside
from studies.report.fair import Compared, FairReport

_WIDE = 20
"""A loss whose greatest value is so many times the least is drawn on a logarithmic axis."""


def fair_figures(fair: FairReport, styles: Mapping[str, ChartStyle]) -> dict[str, Figure]:
    """Return the pictures by name; the band of a curve is one standard error over seeds."""
    drawn = {"fair_rounds": over_rounds(fair, styles), "fair_differences": differences(fair, styles)}
    if fair.budgets:
        drawn["fair_bytes"] = over_bytes(fair, styles)
    return drawn


def over_rounds(fair: FairReport, styles: Mapping[str, ChartStyle]) -> Figure:
    """Draw every score after each number of rounds."""
    figure = Figure(figsize=(5.6 * len(fair.scores) + 2.4, 5.4), layout="constrained")
    grid = figure.subplots(1, len(fair.scores), squeeze=False)[0]
    for axes, score in zip(grid, fair.scores, strict=True):
        for method in fair.methods:
            points = list(range(len(method.bytes)))
            _curve(axes, points, method.rounds[score], styles[method.method], method.method)
        axes.set(xlabel="rounds", ylabel=f"test {score}")
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _scale_loss(axes, fair, score)
    legend_beside(figure, grid[0])
    return figure


def over_bytes(fair: FairReport, styles: Mapping[str, ChartStyle]) -> Figure:
    """Draw every score over the bytes of a client; what trains alone is a line, since it sends nothing."""
    figure = Figure(figsize=(5.6 * len(fair.scores) + 2.4, 5.4), layout="constrained")
    grid = figure.subplots(1, len(fair.scores), squeeze=False)[0]
    for axes, score in zip(grid, fair.scores, strict=True):
        for method in fair.methods:
            style = styles[method.method]
            if method.bytes[-1]:
                _curve(axes, [b / 1e3 for b in method.bytes], method.rounds[score], style, method.method)
            else:
                end = method.end(score).value.mean
                axes.axhline(end, color=style.colour, linestyle=style.line, label=method.method)
        axes.set(xlabel="kB of a client, up and down", ylabel=f"test {score}", xscale="log")
        after_a_round = [
            method.bytes[1] for method in fair.methods if len(method.bytes) > 1 and method.bytes[1]
        ]
        if after_a_round:
            axes.set_xlim(left=min(after_a_round) / 2e3)  # what is before a round is joining, and no result
        _label_decades(axes)
        _scale_loss(axes, fair, score)
    legend_beside(figure, grid[0])
    return figure


def differences(fair: FairReport, styles: Mapping[str, ChartStyle]) -> Figure:
    """Draw paired differences to the control after all rounds; bars are two standard errors."""
    methods = [method for method in fair.methods if method.method != fair.control]
    figure = Figure(figsize=(4.4 * len(fair.scores) + 1.6, 1.2 + 0.32 * len(methods)), layout="constrained")
    grid = figure.subplots(1, len(fair.scores), squeeze=False, sharey=True)[0]
    places = range(len(methods), 0, -1)
    for axes, score in zip(grid, fair.scores, strict=True):
        axes.axvline(0, color=INK, linewidth=0.8)
        for place, method in zip(places, methods, strict=True):
            compared, style = method.end(score), styles[method.method]
            if compared.difference is not None:
                is_noise = compared.verdict in ("noise", "one draw")
                axes.errorbar(
                    compared.difference.mean,
                    place,
                    xerr=2 * (compared.difference.error or 0.0),
                    color=style.colour,
                    marker=style.marker,
                    markerfacecolor="white" if is_noise else style.colour,
                    capsize=3,
                )
        axes.set_yticks(list(places), [method.method for method in methods])
        axes.set(xlabel=f"test {score} minus {fair.control}", ylim=(0.4, len(methods) + 0.6))
        axes.grid(visible=False, axis="y")
    figure.supxlabel("two standard errors; hollow: noise", fontsize=9)
    return figure


def _scale_loss(axes: Axes, fair: FairReport, score: str) -> None:
    """Draw a loss that falls far on a logarithmic axis, where the methods lie apart."""
    means = [entry.value.mean for method in fair.methods for entry in method.rounds[score]]
    if score == "loss" and min(means) > 0 and max(means) > _WIDE * min(means):
        axes.set_yscale("log")


def _label_decades(axes: Axes) -> None:
    """Label the powers of ten, and within two decades 2 and 5 as well: one label alone is no scale."""
    low, high = axes.get_xlim()
    digits = (1.0, 2.0, 5.0) if high < 100 * low else (1.0,)
    axes.xaxis.set_major_locator(LogLocator(subs=digits))
    axes.xaxis.set_major_formatter(LogFormatter(labelOnlyBase=False, minor_thresholds=(inf, inf)))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _curve(
    axes: Axes, x: Sequence[float], compared: Sequence[Compared], style: ChartStyle, label: str
) -> None:
    values = [entry.value for entry in compared]
    style.curve(
        axes,
        x,
        [value.mean for value in values],
        [value.mean - (value.error or 0.0) for value in values],
        [value.mean + (value.error or 0.0) for value in values],
        label,
    )
