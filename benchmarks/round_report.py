"""Show the cost of rounds beside their goals: a table and a picture. Measures nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console

from benchmarks import figures

WITHIN_COPY_AND_HASH, WITHIN_BYTES = 3.0, 1.02
FLAT = 1.1  # peak memory with more clients / with fewer


@dataclass(frozen=True, slots=True)
class Goal:
    """The goals of a size: seconds per round, the server's peak memory, its processor time per round."""

    seconds: float
    rss_mib: float
    cpu_seconds: float


GOALS = {(4, 1): Goal(0.3, 150, 0.05), (8, 8): Goal(1.0, 200, 0.4), (8, 64): Goal(4.0, 400, 2.5)}

_NO_GOAL = (None, None, None)


def show(console: Console, result: dict[str, Any]) -> None:
    """Print figures and, behind a slash, their goals."""
    rows = []
    for size in result["sizes"]:
        goal = GOALS.get((size["clients"], size["mib"]))
        seconds, rss_mib, cpu_seconds = (goal.seconds, goal.rss_mib, goal.cpu_seconds) if goal else _NO_GOAL
        rows.append(
            [
                _name(size),
                _beside(size["seconds"], seconds),
                f"{size['from_open_seconds']:.3g}",
                f"{size['copy_and_hash_seconds']:.3g}",
                _beside(size["seconds"] / size["copy_and_hash_seconds"], WITHIN_COPY_AND_HASH),
                _beside(size["peak_rss_mib"], rss_mib),
                _beside(size["cpu_seconds"], cpu_seconds),
                _beside(size["wire_ratio"], WITHIN_BYTES, digits=4),
            ]
        )
    columns = [
        "size",
        "s per round",
        "s from open",
        "copy + hash s",
        "ratio",
        "peak RSS MiB",
        "CPU s",
        "bytes / 2NB",
    ]
    figures.show(console, "A round through the running coordinator (measured / goal)", columns, rows)
    figures.judge(console, goals(result["sizes"]))


def goals(sizes: Sequence[figures.Row]) -> list[figures.FigureLimit]:
    """List the goals of these sizes, beside the measured figures."""
    goals: list[figures.FigureLimit] = []
    for size in sizes:
        name, goal = _name(size), GOALS.get((size["clients"], size["mib"]))
        if goal is not None:
            goals += [
                figures.FigureLimit(f"{name}: s per round", size["seconds"], goal.seconds),
                figures.FigureLimit(f"{name}: server's peak RSS, MiB", size["peak_rss_mib"], goal.rss_mib),
                figures.FigureLimit(
                    f"{name}: server's CPU s per round", size["cpu_seconds"], goal.cpu_seconds
                ),
            ]
        goals += [
            figures.FigureLimit(
                f"{name}: s / copy and hash s",
                size["seconds"] / size["copy_and_hash_seconds"],
                WITHIN_COPY_AND_HASH,
            ),
            figures.FigureLimit(f"{name}: bytes / 2NB", size["wire_ratio"], WITHIN_BYTES),
        ]
        goals += [
            figures.FigureLimit(
                f"peak RSS, {name} / {_name(fewer)}", size["peak_rss_mib"] / fewer["peak_rss_mib"], FLAT
            )
            for fewer in sizes
            if fewer["mib"] == size["mib"]
            and fewer["strategy"] == size["strategy"]
            and fewer["clients"] < size["clients"]
        ]
    return goals


def draw(path: Path, result: dict[str, Any]) -> None:
    """Draw seconds, memory and processor time over the sizes, goals as lines."""
    sizes = result["sizes"]
    names = [f"{size['clients']} x {size['mib']}\n{size['strategy']}" for size in sizes]
    parts = (
        ("seconds", "seconds per round", "s"),
        ("peak_rss_mib", "server's peak memory", "MiB"),
        ("cpu_seconds", "server's processor time per round", "s"),
    )
    with figures.style():
        figure = Figure(figsize=(13, 3), layout="constrained")
        for axes, (key, title, unit) in zip(figure.subplots(1, 3), parts, strict=True):
            axes.bar(names, [size[key] for size in sizes], color="#1f4e79", width=0.6)
            for place, size in enumerate(sizes):
                goal = GOALS.get((size["clients"], size["mib"]))
                if goal is not None:
                    requested = {
                        "seconds": goal.seconds,
                        "peak_rss_mib": goal.rss_mib,
                        "cpu_seconds": goal.cpu_seconds,
                    }
                    axes.hlines(requested[key], place - 0.4, place + 0.4, color="#c1543c")
            axes.set_title(title)
            axes.set_ylabel(unit)
            axes.set_xlabel("clients x MiB (line: goal)")
        figures.save(path, figure)


def _name(size: figures.Row) -> str:
    return f"{size['clients']} x {size['mib']} MiB, {size['strategy']}"


def _beside(measured: float, goal: float | None, digits: int = 3) -> str:
    return f"{measured:.{digits}g}" + (f" / {goal:g}" if goal is not None else "")
