"""Pictures of scores over rounds and over bytes, and of differences to training alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter, LogLocator, MaxNLocator, NullFormatter

from schemas.messages.scores import LOSS
from studies.report.charts import INK, ChartStyle, legend_beside
from studies.report.courses import Compared
from studies.report.estimates import verdict_of
from studies.report.summary import Report

_WIDE = 20
"""A loss whose greatest value is so many times the least is drawn on a logarithmic axis."""


def over_rounds(report: Report, styles: Mapping[str, ChartStyle]) -> Figure | None:
    """Draw every score after each number of rounds; the band is one standard error over seeds."""
    if not report.courses:
        return None
    figure, grid = _panels(report.course_scores)
    for axes, score in zip(grid, report.course_scores, strict=True):
        for name, course in report.courses.items():
            _curve(axes, list(range(len(course.bytes))), course.rounds[score], styles[name], name)
        axes.set(xlabel="rounds", ylabel=f"test {score}")
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _scale_loss(axes, report, score)
    legend_beside(figure, grid[0])
    return figure


def over_bytes(report: Report, styles: Mapping[str, ChartStyle]) -> Figure | None:
    """Draw every score over the bytes of a client; what trains alone is a line, since it sends nothing."""
    if not report.budgets:
        return None
    figure, grid = _panels(report.course_scores)
    courses = report.courses
    for axes, score in zip(grid, report.course_scores, strict=True):
        for name, course in courses.items():
            style = styles[name]
            if course.bytes[-1]:
                _curve(axes, [count / 1e3 for count in course.bytes], course.rounds[score], style, name)
            else:
                end = course.rounds[score][-1].value.mean
                axes.axhline(end, color=style.colour, linestyle=style.line, label=name)
        axes.set(xlabel="kB of a client, up and down", ylabel=f"test {score}", xscale="log")
        after_a_round = [course.bytes[1] for course in courses.values() if course.bytes[-1]]
        axes.set_xlim(left=min(after_a_round) / 2e3)  # what is before a round is joining, and no result
        _label_decades(axes)
        _scale_loss(axes, report, score)
    legend_beside(figure, grid[0])
    return figure


def differences(report: Report, styles: Mapping[str, ChartStyle]) -> Figure | None:
    """Draw paired differences of the loss to each baseline, and of other scores to the control."""
    panels = [(LOSS, name) for name in report.baselines]
    panels += [(score, report.control) for score in report.metrics if report.control in report.baselines]
    if not panels:
        return None
    methods = [method for method in report.methods if method.loss.against]
    figure = Figure(figsize=(4.4 * len(panels) + 1.6, 1.2 + 0.32 * len(methods)), layout="constrained")
    grid = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    places = range(len(methods), 0, -1)
    for axes, (score, baseline) in zip(grid, panels, strict=True):
        axes.axvline(0, color=INK, linewidth=0.8)
        for place, method in zip(places, methods, strict=True):
            figures, style = method.scores[report.rules[0]].get(score), styles[method.method]
            if figures is None or baseline not in figures.against:
                continue
            difference = figures.against[baseline].seeds
            is_noise = verdict_of(difference) in ("noise", "one draw")
            axes.errorbar(
                difference.mean,
                place,
                xerr=2 * (difference.error or 0.0),
                color=style.colour,
                marker=style.marker,
                markerfacecolor="white" if is_noise else style.colour,
                capsize=3,
            )
        axes.set_yticks(list(places), [method.method for method in methods])
        axes.set(xlabel=f"test {score} minus {baseline}", ylim=(0.4, len(methods) + 0.6))
        axes.grid(visible=False, axis="y")
    figure.supxlabel("two standard errors; hollow: noise", fontsize=9)
    return figure


def _panels(scores: Sequence[str]) -> tuple[Figure, Sequence[Axes]]:
    figure = Figure(figsize=(5.6 * len(scores) + 2.4, 5.4), layout="constrained")
    return figure, figure.subplots(1, len(scores), squeeze=False)[0]


def _scale_loss(axes: Axes, report: Report, score: str) -> None:
    """Draw a loss that falls far on a logarithmic axis, where the methods lie apart."""
    means = [entry.value.mean for course in report.courses.values() for entry in course.rounds[score]]
    if score == LOSS and min(means) > 0 and max(means) > _WIDE * min(means):
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
