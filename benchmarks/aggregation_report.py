"""Show the cost of aggregation beside the bare product: a table and a picture. Measures nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console

from benchmarks import figures

WITHIN_PRODUCT = 2.0
WITHIN_BUDGET = 1.25  # memory above idle / block budget, whatever N and D


def show(console: Console, result: dict[str, Any]) -> None:
    """Print figures."""
    rows = []
    for size in result["sizes"]:
        tessera = size["tessera"]
        rows.append(
            [
                f"{size['clients']} x {size['values']}",
                round(size["mib"]),
                size["product"]["seconds"],
                size["files"]["seconds"],
                tessera["seconds"],
                tessera["cpu_seconds"],
                size["ratio_without_writing"],
                f"{size['ratio']:.3g} / {WITHIN_PRODUCT:g}",
                size["ratio_to_files"],
                size["ratio_of_guard"],
                f"{tessera['peak_rss_mib'] - tessera['idle_rss_mib']:.0f}",
            ]
        )
    columns = ["N x D", "MiB", "product s", "files s", "tessera s", "tessera CPU s"]
    columns += ["unwritten / product", "tessera / product", "tessera / files"]
    columns += ["guard / product", "memory above idle, MiB"]
    title = f"G = W U from the database, block budget {result['block_mib']} MiB (measured / goal)"
    figures.show(console, title, columns, rows)
    figures.judge(console, goals(result["sizes"], result["block_mib"]))


def goals(sizes: Sequence[figures.Row], block_mib: int) -> list[figures.FigureLimit]:
    """List the goals of these sizes, beside the measured figures."""
    goals: list[figures.FigureLimit] = []
    for size in sizes:
        name, tessera = f"N={size['clients']}, D={size['values']}", size["tessera"]
        above = tessera["peak_rss_mib"] - tessera["idle_rss_mib"]
        goals += [
            figures.FigureLimit(f"{name}: s / s of the bare product", size["ratio"], WITHIN_PRODUCT),
            figures.FigureLimit(f"{name}: memory above idle, MiB", above, WITHIN_BUDGET * block_mib),
        ]
    return goals


def draw(path: Path, result: dict[str, Any]) -> None:
    """Draw seconds and memory over the bytes that are mixed."""
    sizes = sorted(result["sizes"], key=lambda size: float(size["mib"]))
    with figures.style():
        figure = Figure(figsize=(8, 3.2), layout="constrained")
        time, memory = figure.subplots(1, 2)
        _lines(time, sizes, "seconds")
        time.set_ylabel("s")
        _lines(memory, sizes, "peak_rss_mib")
        memory.axhline(result["block_mib"], color="#c1543c", linestyle=":", label="block budget")
        memory.set_ylabel("peak memory, MiB")
        memory.set_yscale("log")
        memory.legend()
        figures.save(path, figure)


def _lines(axes: Axes, sizes: list[dict[str, Any]], key: str) -> None:
    for program, colour in (("tessera", "#1f4e79"), ("product", "#8c8c8c"), ("files", "#c9a227")):
        axes.plot(
            [size["mib"] for size in sizes],
            [size[program][key] for size in sizes],
            marker="o",
            color=colour,
            label=program,
        )
    axes.set_xlabel("N x D, MiB")
    axes.legend()
