"""Pictures of experts, worst clients and negative transfer, from recorded metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from studies.bank_record import BankRecord
from studies.report.charts import ChartStyle, legend_beside
from studies.report.summary import Report

_MARKS: Final = {"born": ("*", "born"), "pruned": ("X", "archived"), "merged": ("v", "merged")}
_INK = "#222222"
_EVENT_STEP = 0.07
"""Distance between the marks of events at the same point, as a share of members."""


def expert_utilization(report: Report) -> Figure | None:
    """Draw the share of members that used each expert by round, with births, archived and merged experts."""
    banks = [(f"{m.method}, seed {m.bank.seed}", m.bank.record) for m in report.methods if m.bank is not None]
    return utilization_of(banks) if banks else None


def utilization_of(banks: Sequence[tuple[str, BankRecord]]) -> Figure:
    """Draw the banks of runs below one another, each under its title; see `expert_utilization`."""
    figure = Figure(figsize=(9.2, 3.4 * len(banks)), layout="constrained")
    grid = figure.subplots(len(banks), squeeze=False, sharey=True)
    for axes, (title, bank) in zip(grid[:, 0], banks, strict=True):
        _utilization(axes, bank)
        axes.set(xlabel="round", ylabel="share of members", ylim=(-0.03, 1.03))
        axes.set_title(title, fontsize=10)
        axes.xaxis.get_major_locator().set_params(integer=True)
    legend_beside(figure, max(grid[:, 0], key=lambda axes: len(axes.get_legend_handles_labels()[1])))
    return figure


def worst_client(report: Report, styles: Mapping[str, ChartStyle]) -> Figure:
    """Draw the loss of the worst founder after each round's local steps; the band is one standard error."""
    figure = Figure(figsize=(9.2, 4.2), layout="constrained")
    axes = figure.subplots()
    for method in report.methods:
        losses = method.worst.loss
        errors = [loss.error or 0.0 for loss in losses]
        mean = [loss.mean for loss in losses]
        styles[method.method].curve(
            axes,
            method.worst.steps,
            mean,
            [m - e for m, e in zip(mean, errors, strict=True)],
            [m + e for m, e in zip(mean, errors, strict=True)],
            method.method,
        )
    axes.set(xlabel="local steps so far", ylabel="test loss of the worst client")
    axes.set_xlim(left=0)
    legend_beside(figure, axes)
    return figure


def negative_transfer(report: Report, styles: Mapping[str, ChartStyle]) -> Figure | None:
    """Draw each founder's loss minus that of the same client alone, paired by seed; above 0 it loses."""
    methods = [(m, t) for m in report.methods if (t := m.main_transfer) is not None]
    if not methods:
        return None
    figure = Figure(figsize=(9.2, 4.4), layout="constrained")
    axes = figure.subplots()
    axes.axhline(0, color=_INK, linewidth=0.8)
    names = list(methods[0][1].clients)
    for index, (method, transfer) in enumerate(methods):
        style = styles[method.method]
        offset = 0.7 * ((index + 0.5) / len(methods) - 0.5)
        axes.errorbar(
            [place + offset for place in range(len(names))],
            [transfer.clients[name].mean for name in names],
            yerr=[transfer.clients[name].error or 0.0 for name in names],
            color=style.colour,
            marker=style.marker,
            linestyle="none",
            markersize=5,
            capsize=2,
            label=f"{method.method} - {transfer.control}",
        )
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right")
    axes.set(ylabel="test loss, federated minus alone", xlim=(-0.6, len(names) - 0.4))
    axes.grid(visible=False, axis="x")
    legend_beside(figure, axes)
    return figure


def _utilization(axes: Axes, bank: BankRecord) -> None:
    last = bank.rounds[-1].round
    for index, expert in enumerate(bank.experts):
        shares = bank.share(expert.expert)
        if not shares:
            continue
        rounds, values = zip(*shares, strict=True)
        style = ChartStyle.nth(index)
        style.curve(axes, rounds, values, values, values, f"expert {expert.expert}")
    labelled: set[str] = set()
    drawn: Counter[tuple[int, float]] = Counter()
    for event in bank.events:
        marker, label = _MARKS[event.change]
        place = min(last, event.round + 1) if event.change == "born" else event.round
        share = dict(bank.share(event.expert)).get(place, 0.0)
        # Experts that end unused in the same round would hide each other.
        height = share + _EVENT_STEP * drawn[place, share]
        drawn[place, share] += 1
        axes.plot(
            place,
            height,
            marker,
            color=_INK,
            markersize=10,
            markeredgecolor="white",
            label=label if label not in labelled else None,
            zorder=5,
        )
        axes.annotate(str(event.expert), (place, height), (6, 6), textcoords="offset points", fontsize=8)
        labelled.add(label)
