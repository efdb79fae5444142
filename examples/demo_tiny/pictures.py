"""Draw the demo's pictures as SVG text, from the report alone."""

from __future__ import annotations

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from client_agent.transport.admin_client import Answer
from studies.report.charts import STYLE, svg

COLOURS = {
    "local": "#8c8c8c",
    "local_lora": "#c9a227",
    "fedavg": "#c1543c",
    "fedmosaic_random_frames": "#7aa6c2",
    "fedmosaic": "#1f4e79",
}
_INK = "#222222"


def draw(report: Answer) -> dict[str, str]:
    """Return every picture by name, as SVG to put into a page."""
    with mpl.rc_context(STYLE):
        return {
            "losses": svg(_losses(report)),
            "clients": svg(_clients(report)),
            "late": svg(_late(report)),
            "relevance": svg(_relevance(report)),
            "bytes": svg(_bytes(report)),
            "alignment": svg(_alignment(report)),
        }


def _losses(report: Answer) -> Figure:
    """Mean loss of the six founders after the local steps of each round."""
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = figure.subplots()
    founders = [client for client in report["clients"] if not client["late_joiner"]]
    for method, colour in COLOURS.items():
        curves = [client["methods"][method]["loss_by_round"] for client in founders]
        mean = [sum(values) / len(values) for values in zip(*curves, strict=True)]
        axes.plot(range(1, len(mean) + 1), mean, marker="o", color=colour, label=method)
    _rounds(axes, "round", "mean loss of the six")
    axes.legend(frameon=False, fontsize=9)
    return figure


def _clients(report: Answer) -> Figure:
    """Loss of what each client ends with, by method."""
    clients = report["clients"]
    figure = Figure(figsize=(8.6, 3.8), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(COLOURS)
    for index, (method, colour) in enumerate(COLOURS.items()):
        places = [i + (index - (len(COLOURS) - 1) / 2) * width for i in range(len(clients))]
        heights = [client["methods"][method]["loss"] for client in clients]
        axes.bar(places, heights, width, color=colour, label=method)
    labels = [
        f"{c['client']}\n{c['task']} on {c['architecture']}" + ("\njoins late" if c["late_joiner"] else "")
        for c in clients
    ]
    axes.set_xticks(range(len(clients)), labels)
    axes.set(ylabel="loss at the end")
    axes.grid(visible=False, axis="x")
    axes.legend(frameon=False, fontsize=9, ncols=len(COLOURS), loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return figure


def _late(report: Answer) -> Figure:
    """The late joiner's loss over its own rounds, the start included."""
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = figure.subplots()
    for method, colour in COLOURS.items():
        rows = report["late_joiner"][method]
        curve = [rows["loss_at_start"], *rows["loss_by_round"]]
        axes.plot(range(len(curve)), curve, marker="o", color=colour, label=method)
    _rounds(axes, "rounds of its own training", "late joiner's loss")
    axes.legend(frameon=False, fontsize=9)
    return figure


def _relevance(report: Answer) -> Figure:
    """Draw the relevance matrix of the last round."""
    names, matrix = report["relevance"]["clients"], report["relevance"]["matrix"]
    kind = {c["client"]: f"{c['client']} ({c['task']}, {c['architecture']})" for c in report["clients"]}
    order = sorted(range(len(names)), key=lambda i: (kind[names[i]].split("(")[1], names[i]))
    figure = Figure(figsize=(6.4, 5.0), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow([[matrix[i][j] for j in order] for i in order], cmap="Blues", vmin=0, vmax=1)
    labels = [kind[names[i]] for i in order]
    axes.set_xticks(range(len(order)), labels, rotation=40, ha="right")
    axes.set_yticks(range(len(order)), labels)
    axes.grid(visible=False)
    for row, i in enumerate(order):
        for column, j in enumerate(order):
            value = matrix[i][j]
            colour = "white" if value > 0.5 else _INK
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", color=colour, fontsize=8)
    axes.set(xlabel="is listened to", ylabel="listens")
    figure.colorbar(image, ax=axes, label="relevance", shrink=0.8)
    return figure


def _bytes(report: Answer) -> Figure:
    """Encoded bytes per client and round, both directions."""
    figure = Figure(figsize=(5.2, 2.2), layout="constrained")
    axes = figure.subplots()
    values = [report["bytes_down_per_client_round"] / 1000, report["bytes_up_per_client_round"] / 1000]
    bars = axes.barh(["down: personalised weights", "up: update and signature"], values, color="#1f4e79")
    axes.bar_label(bars, fmt="%.1f kB", padding=4)
    axes.set(xlabel="kB per client and round (encoded bodies)", xlim=(0, max(values) * 1.25))
    axes.grid(visible=False, axis="y")
    return figure


def _alignment(report: Answer) -> Figure:
    """Held-out error per (block, role) and base model; what is below the limit is shared."""
    packs = report["alignment"]
    figure = Figure(figsize=(8.6, 3.4), layout="constrained")
    axes = figure.subplots()
    markers = iter("os^Dv")
    for base_model, pack in sorted(packs.items()):
        names = sorted(pack["errors"])
        errors = [pack["errors"][name]["b_task"] for name in names]
        filled = ["#1f4e79" if name in pack["selected"] else "white" for name in names]
        marker = next(markers)
        axes.scatter(names, errors, marker=marker, c=filled, edgecolors="#1f4e79", label=base_model)
    axes.set(ylabel="held-out error", ylim=(0, None))
    axes.tick_params(axis="x", rotation=70)
    axes.legend(frameon=False, fontsize=9, title="filled: shared")
    return figure


def _rounds(axes: Axes, x: str, y: str) -> None:
    axes.set(xlabel=x, ylabel=y)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
