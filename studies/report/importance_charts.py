"""Charts of the importance measures as SVG text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from schemas.messages.federations import ALL_ROLES
from studies.report.charts import STYLE, ChartStyle, chart_styles, legend_beside, svg
from studies.report.importance import ImportanceSummary
from studies.report.summary import Report

_MEASURES = {
    "density": "share of the update sent",
    "residual": "unsent / learnt",
    "kl": "KL to the prior served, nats a rank",
}
_ROW = 0.17  # inches per labelled row of a heat map
_TALLEST = 7.0  # inches of all rows at most; beyond that, only some layers are labelled
_COLUMN = 0.55  # inches per client


def draw_measures(report: Report) -> str | None:
    """Draw density, residual and KL over rounds; return None if no method learns importance."""
    summaries = {m.method: m.importance for m in report.methods if m.importance is not None}
    if not summaries:
        return None
    styles = chart_styles(report)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(11, 3.4), layout="constrained")
        panels = figure.subplots(1, 3)
        for method, summary in summaries.items():
            _over_rounds(panels, summary, styles[method], method)
        for axes, label in zip(panels, _MEASURES.values(), strict=True):
            axes.set(xlabel="round", ylim=(0, None))
            axes.set_title(label, fontsize=10)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        legend_beside(figure, panels[0])
        return svg(figure)


def draw_heat_maps(report: Report) -> dict[str, str]:
    """Draw each module's importance per client after the last round, by method."""
    with mpl.rc_context(STYLE | {"axes.grid": False}):
        return {
            m.method: svg(_heat_map({n: f.modules for n, f in m.importance.measures.items()}, report.models))
            for m in report.methods
            if m.importance is not None
        }


def _over_rounds(panels: Sequence[Axes], summary: ImportanceSummary, style: ChartStyle, label: str) -> None:
    """Draw the mean over the clients of each round; the band is their range."""
    measured = [entry for file in summary.measures.values() for entry in file.rounds]
    rounds = sorted({entry.round for entry in measured})
    for axes, name in zip(panels, _MEASURES, strict=True):
        by_round = [
            [getattr(entry, name) for entry in measured if entry.round == round_number]
            for round_number in rounds
        ]
        mean = [sum(values) / len(values) for values in by_round]
        low, high = [min(values) for values in by_round], [max(values) for values in by_round]
        style.curve(axes, rounds, mean, low, high, label)


def _heat_map(modules: Mapping[str, Mapping[str, float]], models: Mapping[str, str]) -> Figure:
    """Draw one panel per base model: rows are modules, columns are clients.

    Colours are differences to the client's mean, because all values of a client drift together.
    """
    clients: dict[str, list[str]] = {}
    for name in modules:
        clients.setdefault(models[name], []).append(name)
    rows = {slug: sorted(modules[names[0]], key=_depth) for slug, names in clients.items()}
    height = min(_TALLEST, _ROW * max(map(len, rows.values())))
    widths = [max(_COLUMN * len(names), 1.5) + 2.0 for names in clients.values()]
    figure = Figure(figsize=(sum(widths), height + 1.5), layout="constrained")
    grid = figure.subplots(1, len(clients), squeeze=False, width_ratios=widths)[0]
    for axes, (slug, names) in zip(grid, clients.items(), strict=True):
        values = np.array([[modules[name][row] for name in names] for row in rows[slug]])  # (rows, clients)
        mean = values.mean(0)
        # Relative to the client's mean, because clients differ more in level than modules do in pattern.
        cells = 100 * (values / mean - 1)
        # Symmetric, so that the middle of the colours is the client's mean; 1 if all modules are equal.
        limit = float(np.abs(cells).max()) or 1.0
        mesh = axes.pcolormesh(cells, cmap="RdBu_r", vmin=-limit, vmax=limit)
        labels = [f"{name} ({m:.3f})" for name, m in zip(names, mean, strict=True)]
        places = [i + 0.5 for i in range(len(names))]
        axes.set_xticks(places, labels, rotation=45, ha="right", rotation_mode="anchor")
        labelled = _labelled(rows[slug], height)
        axes.set_yticks([rows[slug].index(row) + 0.5 for row in labelled], labelled, fontsize=8)
        axes.set_title(slug, fontsize=9)
        axes.invert_yaxis()
        axes.tick_params(length=0)
        figure.colorbar(mesh, ax=axes, format="%+.3g", label="% above the client's mean")
    return figure


def _labelled(rows: Sequence[str], height: float) -> list[str]:
    """Return the rows to label: all, or the first of every n-th layer if labels would overlap."""
    if len(rows) * _ROW <= height:
        return list(rows)
    first: dict[int, str] = {}
    for row in rows:
        first.setdefault(_depth(row)[0], row)
    stride = ceil(len(first) * _ROW / height)
    return list(first.values())[::stride]


def _depth(module: str) -> tuple[int, int]:
    """Return the sort key of a module: layer, then role, so that `l2.v` sorts before `l10.q`."""
    layer, _, role = module.partition(".")
    return int(layer[1:]), ALL_ROLES.index(role)
