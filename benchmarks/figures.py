"""Output of figures: a JSON file that also describes the machine, a table, and a picture."""

from __future__ import annotations

import json
import os
import platform
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import psutil
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from benchmarks.memory import MIB

Row = Mapping[str, Any]

THREADS_VARIABLE = "OMP_NUM_THREADS"
_STYLE: Any = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.fonttype": "none"}


def machine() -> dict[str, Any]:
    """Return the machine and its load, as the origin of figures."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "threads_per_process": os.environ.get(THREADS_VARIABLE, "all"),
        "load_before": round(os.getloadavg()[0], 2),
        "memory_mib": psutil.virtual_memory().total // MIB,
        "processor": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "sqlite": sqlite3.sqlite_version,
    }


def write(path: Path, figures: Row) -> None:
    """Write figures as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")


def show(console: Console, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table."""
    table = Table(title=title)
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if place else "left")
    for row in rows:
        table.add_row(*(f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row))
    console.print(table)


@dataclass(frozen=True, slots=True)
class FigureLimit:
    """A figure and its largest accepted value."""

    name: str
    measured: float
    most: float


def judge(console: Console, expected: Sequence[FigureLimit]) -> None:
    """Print for each goal whether it is met. The exit status stays 0: a busy machine misses goals too."""
    for item in expected:
        verdict = "met" if item.measured <= item.most else "missed"
        console.print(f"{verdict:>6}: {item.name} {item.measured:.3g}, goal {item.most:g}")


def save(path: Path, figure: Figure) -> None:
    """Write a picture as SVG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="svg", metadata={"Date": None})


def style() -> Any:
    """Return the style that pictures are drawn in, to be used in a `with`."""
    return mpl.rc_context(_STYLE)
