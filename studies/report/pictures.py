"""Pictures of a comparison as files, and what a paper needs: PDF figures and a LaTeX table."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Final, Literal

import matplotlib as mpl
from matplotlib.figure import Figure

from client_agent.storage.files import write_durably
from studies.report.charts import STYLE, chart_styles
from studies.report.estimates import Estimate
from studies.report.experts_charts import (
    expert_utilization,
    negative_transfer,
    worst_client,
)
from studies.report.fair_charts import fair_figures
from studies.report.fair_tables import latex_fair
from studies.report.rounds_charts import (
    alignment_errors,
    client_losses,
    relevance_over_rounds,
    round_bytes,
)
from studies.report.summary import MethodSummary, Report
from studies.report.tasks import rows_of

_SPECIAL: Final = str.maketrans({"_": r"\_", "%": r"\%", "&": r"\&", "#": r"\#"})
_DPI = 150


def figures_of(report: Report) -> dict[str, Figure]:
    """Return the pictures that a report has data for, by name."""
    styles = chart_styles(report)
    with mpl.rc_context(STYLE):
        drawn = {
            "expert_utilization": expert_utilization(report),
            "worst_client": worst_client(report, styles),
            "negative_transfer": negative_transfer(report, styles),
            "client_losses": client_losses(report, styles),
            "relevance": relevance_over_rounds(report),
            "alignment_errors": alignment_errors(report),
            "round_bytes": round_bytes(report, styles),
        }
        if report.fair is not None:
            drawn |= fair_figures(report.fair, styles)
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

    `results.tex` has all methods, `tasks.tex` the scores of each task, if the rows have tasks, and `fair.tex`
    those of a fair comparison.
    """
    tables = {"results.tex": latex_table(report)}
    if any(method.main_tasks for method in report.methods):
        tables["tasks.tex"] = latex_tasks(report)
    if report.fair is not None:
        tables["fair.tex"] = latex_fair(report.fair)
    for name, content in tables.items():
        write_durably(folder / name, content.encode())
    return [*write_pictures(report, folder, "pdf"), *(folder / name for name in tables)]


def latex_table(report: Report) -> str:
    """Return a LaTeX table of all methods: means over seeds with standard errors. It needs booktabs."""
    metrics = report.metrics
    heads = ["method", "loss", "worst client", *metrics, "minus alone", "clients that lose", "kB"]
    rows = [" & ".join(_row(method, report, metrics)) + r" \\" for method in report.methods]
    return _tabular(report, heads, rows)


def latex_tasks(report: Report) -> str:
    """Return a LaTeX table of every score of each task by method, as `latex_table`."""
    heads = ["task", "score", *(method.method for method in report.methods)]
    rows = [
        " & ".join(
            [
                *(name.translate(_SPECIAL) for name in (row.task, row.score)),
                *(_figure(value) if value is not None else "--" for value in row.values),
            ]
        )
        + r" \\"
        for row in rows_of([method.main_tasks for method in report.methods])
    ]
    return _tabular(report, heads, rows)


def _tabular(report: Report, heads: list[str], rows: list[str]) -> str:
    return "\n".join(
        [
            f"% {report.study}, seeds {', '.join(map(str, report.seeds))}: means, and their standard errors",
            r"\begin{tabular}{l" + "r" * (len(heads) - 1) + "}",
            r"\toprule",
            " & ".join(head.translate(_SPECIAL) for head in heads) + r" \\",
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def _row(method: MethodSummary, report: Report, metrics: list[str]) -> list[str]:
    scores, transfer = method.scores[report.rules[0]], method.main_transfer
    losers = f"{len(transfer.losers)} of {len(transfer.clients)}" if transfer is not None else "--"
    return [
        method.method.translate(_SPECIAL),
        _figure(method.loss.mean),
        _figure(method.loss.worst),
        *(_figure(scores[name].mean) if name in scores else "--" for name in metrics),
        _figure(transfer.loss.seeds) if transfer is not None else "--",
        losers,
        f"{(method.bytes_up + method.bytes_down) / 1000:.1f}" if method.bytes_up else "--",
    ]


def _figure(value: Estimate) -> str:
    error = rf" \pm {value.error:.3f}" if value.error is not None else ""
    return f"${value.mean:.3f}{error}$"
