"""LaTeX tables of a comparison, for a paper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from studies.report.courses import Compared
from studies.report.estimates import Estimate, verdict_of
from studies.report.runs import ScoreFigures
from studies.report.summary import MethodSummary, Report
from studies.report.tables import budget
from studies.report.tasks import rows_of

_SPECIAL: Final = str.maketrans({"_": r"\_", "%": r"\%", "&": r"\&", "#": r"\#"})


def latex_table(report: Report) -> str:
    """Return a LaTeX table of all methods: means over seeds with standard errors. It needs booktabs."""
    compared = [f"minus {report.control}"] if report.control is not None else []
    metrics = [head for name in report.metrics for head in (name, *compared)]
    heads = ["method", "adapter", "loss", *compared, "worst client", *metrics, "minus alone"]
    rows = [_row(method, report) for method in report.methods]
    return _tabular(report, "means", [*heads, "clients that lose", "kB"], rows)


def latex_at_equal_bytes(report: Report) -> str:
    """Return a LaTeX table of each score at equal bytes; differences to the control are below the values."""
    below = f", below minus {report.control}" if report.control is not None else ""
    return "\n".join(
        _tabular(
            report,
            f"{score} at equal bytes of a client{below}: means",
            ["method", *map(budget, report.budgets)],
            [row for name, course in report.courses.items() for row in _rows_at(name, course.budgets[score])],
            report.paired_seeds,
        )
        for score in report.course_scores
    )


def latex_tasks(report: Report) -> str:
    """Return a LaTeX table of every score of each task by method, as `latex_table`."""
    rows = [
        [
            _text(row.task),
            _text(row.score),
            *(_figure(value) if value is not None else "--" for value in row.values),
        ]
        for row in rows_of([method.main_tasks for method in report.methods])
    ]
    heads = ["task", "score", *(method.method for method in report.methods)]
    return _tabular(report, "means", heads, rows)


def _tabular(
    report: Report,
    content: str,
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    seeds: Sequence[int] | None = None,
) -> str:
    """Return a table; `seeds` are those of its numbers, None = the requested ones."""
    names = ", ".join(map(str, report.seeds if seeds is None else seeds))
    return "\n".join(
        [
            f"% {report.study}, seeds {names}: {content}, and their standard errors",
            r"\begin{tabular}{l" + "r" * (len(heads) - 1) + "}",
            r"\toprule",
            " & ".join(map(_text, heads)) + r" \\",
            r"\midrule",
            *(" & ".join(row) + r" \\" for row in rows),
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def _row(method: MethodSummary, report: Report) -> list[str]:
    scores, transfer = method.scores[report.rules[0]], method.main_transfer
    losers = f"{len(transfer.losers)} of {len(transfer.clients)}" if transfer is not None else "--"
    return [
        _text(method.method),
        _text(method.adapter),
        *_with_difference(method.loss, report),
        _figure(method.loss.worst),
        *(cell for name in report.metrics for cell in _with_difference(scores.get(name), report)),
        _judged(transfer.loss.seeds) if transfer is not None else "--",
        losers,
        f"{(method.bytes_up + method.bytes_down) / 1000:.1f}" if method.bytes_up else "--",
    ]


def _with_difference(score: ScoreFigures | None, report: Report) -> list[str]:
    """Return a score and, in a column of its own, its difference to the control's."""
    value = _figure(score.mean) if score is not None else "--"
    if report.control is None:
        return [value]
    pair = score.against.get(report.control) if score is not None else None
    return [value, _judged(pair.seeds) if pair is not None else "--"]


def _rows_at(method: str, compared: Sequence[Compared]) -> list[list[str]]:
    """Return the scores of a method at equal bytes, and below them its differences to the control's."""
    values = [_text(method), *(_figure(entry.value) for entry in compared)]
    differences = [_judged(entry.difference) for entry in compared if entry.difference is not None]
    return [values, ["", *differences]] if differences else [values]


def _figure(value: Estimate) -> str:
    error = rf" \pm {value.error:.3f}" if value.error is not None else ""
    return f"${value.mean:.3f}{error}$"


def _judged(difference: Estimate) -> str:
    """Return a paired difference, and whether it is noise."""
    error = rf" \pm {difference.error:.3f}" if difference.error is not None else ""
    return f"${difference.mean:+.3f}{error}$" + (" (noise)" if verdict_of(difference) == "noise" else "")


def _text(text: str) -> str:
    return text.translate(_SPECIAL)
