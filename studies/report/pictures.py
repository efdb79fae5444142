"""Pictures of a comparison as files, and what a paper needs: PDF figures and a LaTeX table."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Literal

import matplotlib as mpl
from matplotlib.figure import Figure

from client_agent.storage.files import write_durably
from studies.report.charts import STYLE, chart_styles
from studies.report.courses_charts import differences, over_bytes, over_rounds
from studies.report.experts_charts import (
    expert_utilization,
    negative_transfer,
    worst_client,
)
from studies.report.latex import latex_at_equal_bytes, latex_table, latex_tasks
from studies.report.rounds_charts import (
    alignment_errors,
    client_losses,
    relevance_over_rounds,
    round_bytes,
)
from studies.report.summary import Report

_DPI = 150


def figures_of(report: Report) -> dict[str, Figure]:
    """Return the pictures that a report has data for, by name."""
    styles = chart_styles(report)
    with mpl.rc_context(STYLE):
        drawn = {
            "differences": differences(report, styles),
            "over_rounds": over_rounds(report, styles),
            "over_bytes": over_bytes(report, styles),
            "expert_utilization": expert_utilization(report),
            "worst_client": worst_client(report, styles),
            "negative_transfer": negative_transfer(report, styles),
            "client_losses": client_losses(report, styles),
            "relevance": relevance_over_rounds(report),
            "alignment_errors": alignment_errors(report),
            "round_bytes": round_bytes(report, styles),
        }
    return {name: figure for name, figure in drawn.items() if figure is not None}


def write_pictures(report: Report, folder: Path, kind: Literal["png", "pdf"] = "png") -> list[Path]:
    """Write every picture into a folder, and return the files."""
    files = []
    for name, figure in figures_of(report).items():
        file, content = folder / f"{name}.{kind}", io.BytesIO()
        with mpl.rc_context(STYLE):
            # Without a date, equal results give equal files.
            dates = {"CreationDate": None} if kind == "pdf" else None
            figure.savefig(content, format=kind, dpi=_DPI, metadata=dates)
        write_durably(file, content.getvalue())
        files.append(file)
    return files


def write_paper(report: Report, folder: Path) -> list[Path]:
    """Write the pictures as PDF, and LaTeX tables of recorded metrics.

    `results.tex` has all methods, `bytes.tex` their scores at equal bytes if these differ, and `tasks.tex`
    the scores of each task, if the rows have tasks.
    """
    tables = {"results.tex": latex_table(report)}
    if any(method.main_tasks for method in report.methods):
        tables["tasks.tex"] = latex_tasks(report)
    if report.compares_bytes:
        tables["bytes.tex"] = latex_at_equal_bytes(report)
    for name, content in tables.items():
        write_durably(folder / name, content.encode())
    return [*write_pictures(report, folder, "pdf"), *(folder / name for name in tables)]
