"""The demo's picture: losses and right answers by silo, and whose training each silo's weights are made of.

    python -m examples.demo.pictures runs/demo/report.json docs/images/demo.png

draws it again from the recorded figures of a run.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from examples.demo.report import HEADINGS, Report, Side, read
from studies.report.charts import STYLE, svg

_COLOURS: Final[Mapping[Side, str]] = {"bare": "#c9c9c9", "alone": "#c9a227", "federated": "#1f4e79"}
_INK = "#222222"
_DOTS_PER_INCH = 130
_STYLE: Final = STYLE | {"axes.titlesize": 10}


def draw(report: Report) -> dict[str, str]:
    """Return the picture as SVG text, by name."""
    with mpl.rc_context(_STYLE):
        return {"overview": svg(overview(report))}


def save(report: Report, file: Path) -> None:
    """Write the picture as a PNG file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(_STYLE):
        overview(report).savefig(file, dpi=_DOTS_PER_INCH, metadata={"Software": ""})


def overview(report: Report) -> Figure:
    figure = Figure(figsize=(11.0, 4.4), layout="constrained")
    losses, tickets, relevance = figure.subplots(1, 3)
    _bars(
        losses, report, {s: [silo.by_side[s].loss for silo in report.silos] for s in report.sides}, "{:.3f}"
    )
    losses.set(title="Loss on held-out tickets\n(lower is better)", xlabel="nats per answer token")
    count = report.silos[0].by_side["federated"].tickets
    right = {s: [float(silo.by_side[s].right) for silo in report.silos] for s in report.sides}
    _bars(tickets, report, right, "{:.0f}")
    tickets.set(title=f"Right answers to {count} tickets\n(higher is better)", xlim=(0, 1.12 * count))
    _relevance(relevance, report)
    handles, names = losses.get_legend_handles_labels()
    figure.legend(handles, names, frameon=False, ncols=len(report.sides), loc="outside lower left")
    return figure


def _bars(axes: Axes, report: Report, heights: Mapping[Side, list[float]], form: str) -> None:
    """Draw a row per silo with a bar per side, so that labels stand beside the bars and never meet."""
    width = 0.8 / len(report.sides)
    for index, side in enumerate(report.sides):
        places = [i + (index - (len(report.sides) - 1) / 2) * width for i in range(len(report.silos))]
        bars = axes.barh(places, heights[side], width, color=_COLOURS[side], label=HEADINGS[side])
        axes.bar_label(bars, fmt=form, fontsize=7, padding=2)
    axes.set_yticks(range(len(report.silos)), _names(report), fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.grid(visible=False, axis="y")


def _relevance(axes: Axes, report: Report) -> None:
    order = [report.federation.silos.index(silo.silo.name) for silo in report.silos]
    matrix = [[report.federation.relevance[i][j] for j in order] for i in order]
    axes.imshow(matrix, cmap="Blues", vmin=0, vmax=1, aspect="auto")  # as high as the bars beside it
    names = [silo.silo.name for silo in report.silos]
    axes.set_xticks(range(len(order)), names, rotation=30, ha="right", fontsize=8)
    axes.set_yticks(range(len(order)), names, fontsize=8)
    axes.grid(visible=False)
    for row, weights in enumerate(matrix):
        for column, weight in enumerate(weights):
            colour = "white" if weight > 0.5 else _INK
            axes.text(column, row, f"{weight:.0%}", ha="center", va="center", color=colour, fontsize=9)
    axes.set(title="How much a silo (row)\nlearns from each silo (column)")


def _names(report: Report) -> list[str]:
    return [
        f"{silo.silo.name}\n({silo.silo.scheme})" + ("\njoins late" if silo.silo.late else "")
        for silo in report.silos
    ]


if __name__ == "__main__":
    save(read(Path(sys.argv[1])), Path(sys.argv[2]))
