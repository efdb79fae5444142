"""The demo's picture: losses by silo, and who listens to whom."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from client_agent.simulation.report.charts import STYLE, svg
from examples.demo.report import HEADINGS, Report, Side

_COLOURS: Final[Mapping[Side, str]] = {"bare": "#c9c9c9", "alone": "#c9a227", "federated": "#1f4e79"}
_INK = "#222222"
_DOTS_PER_INCH = 130
_STYLE: Final = STYLE | {"axes.titlesize": 10}


def draw(report: Report) -> dict[str, str]:
    """Return the picture as SVG text, by name."""
    with mpl.rc_context(_STYLE):
        return {"overview": svg(_overview(report))}


def save(report: Report, file: Path) -> None:
    """Write the picture as a PNG file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(_STYLE):
        _overview(report).savefig(file, dpi=_DOTS_PER_INCH, metadata={"Software": ""})


def _overview(report: Report) -> Figure:
    figure = Figure(figsize=(11.0, 4.1), layout="constrained")
    losses, tickets, relevance = figure.subplots(1, 3, width_ratios=(1.15, 1.15, 1))
    _bars(losses, report, {s: [silo.by_side[s].loss for silo in report.silos] for s in report.sides})
    losses.set(title="loss on held-out tickets", ylabel="nats per answer token (lower is better)")
    of_tickets = report.silos[0].by_side["federated"].tickets
    _bars(tickets, report, {s: [silo.by_side[s].right for silo in report.silos] for s in report.sides})
    tickets.set(title=f"tickets right, of {of_tickets} (higher is better)", ylim=(0, of_tickets))
    _relevance(relevance, report)
    handles, names = losses.get_legend_handles_labels()
    figure.legend(handles, names, frameon=False, ncols=len(report.sides), loc="outside lower left")
    return figure


def _bars(axes: Axes, report: Report, heights: Mapping[Side, list[float]]) -> None:
    width = 0.8 / len(report.sides)
    for index, side in enumerate(report.sides):
        places = [i + (index - (len(report.sides) - 1) / 2) * width for i in range(len(report.silos))]
        bars = axes.bar(places, heights[side], width, color=_COLOURS[side], label=HEADINGS[side])
        axes.bar_label(bars, fmt="%.3g", fontsize=7, padding=1)
    axes.set_xticks(range(len(report.silos)), _names(report), fontsize=8)
    axes.grid(visible=False, axis="x")


def _relevance(axes: Axes, report: Report) -> None:
    order = [report.federation.silos.index(silo.silo.name) for silo in report.silos]
    matrix = [[report.federation.relevance[i][j] for j in order] for i in order]
    axes.imshow(matrix, cmap="Blues", vmin=0, vmax=1)
    names = [silo.silo.name for silo in report.silos]
    axes.set_xticks(range(len(order)), names, rotation=30, ha="right", fontsize=8)
    axes.set_yticks(range(len(order)), names, fontsize=8)
    axes.grid(visible=False)
    for row, weights in enumerate(matrix):
        for column, weight in enumerate(weights):
            colour = "white" if weight > 0.5 else _INK
            axes.text(column, row, f"{weight:.2f}", ha="center", va="center", color=colour, fontsize=9)
    axes.set(title="how far a row listens to a column")


def _names(report: Report) -> list[str]:
    return [
        f"{silo.silo.name}\n({silo.silo.scheme})" + ("\njoins late" if silo.silo.late else "")
        for silo in report.silos
    ]
