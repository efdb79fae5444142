"""Tables of a fair comparison: on the terminal, and in LaTeX."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.table import Table

from studies.report.estimates import Estimate
from studies.report.fair import Compared, FairMethod, FairReport

_MINUS = re.compile(r"(?<!\w)-(?=\d)")

RULE = "noise: within two standard errors over seeds, paired by seed"


def fair_tables(fair: FairReport) -> list[Table]:
    """Return the tables of a fair comparison for the terminal."""
    tables = [_ends(fair)]
    if any(method.trials for method in fair.methods):
        tables.append(_rates(fair))
    if fair.budgets:
        tables += [_budgets(fair, score) for score in fair.scores]
    return tables


def score_figure(value: Estimate) -> str:
    return f"{value.mean:.3f}" + (f" ± {value.error:.3f}" if value.error is not None else "")


def difference_figure(compared: Compared) -> str:
    """Format a difference to the control, and whether it is noise; a dash for the control itself."""
    difference = compared.difference
    if difference is None:
        return "-"
    error = f" ± {difference.error:.3f}" if difference.error is not None else ""
    noise = " (noise)" if compared.verdict == "noise" else ""
    return f"{difference.mean:+.3f}{error}{noise}"


def tried(method: FairMethod) -> str:
    """Format the rates that were tried, with their validation losses."""
    return ", ".join(
        f"{trial.rate:g}: " + (f"{trial.loss:.3f}" if trial.loss is not None else "diverged")
        for trial in method.trials
    )


def budget(count: float) -> str:
    """Format bytes of a client."""
    return f"{count / 1e6:,.2f} MB" if count >= 1e6 else f"{count / 1e3:,.0f} kB"


def heads(fair: FairReport) -> list[str]:
    """Return the columns of the main table."""
    scores = (head for score in fair.scores for head in (score, f"minus {fair.control}"))
    return ["method", "adapter", "rate", *scores, "bytes of a client", "CPU s"]


def cells(method: FairMethod, fair: FairReport) -> list[str]:
    """Return a row of the main table."""
    scores = [
        text
        for score in fair.scores
        for text in (score_figure(method.end(score).value), difference_figure(method.end(score)))
    ]
    spent = budget(method.bytes[-1]) if method.bytes[-1] else "-"
    return [
        method.method,
        method.adapter,
        f"{method.rate:g}",
        *scores,
        spent,
        f"{method.cpu_seconds.mean:.0f}",
    ]


def about(fair: FairReport) -> str:
    """Describe the comparison in a sentence."""
    seeds = ", ".join(map(str, fair.seeds))
    return (
        f"one adapter for all methods with the same label; a learning rate for each, searched with seed "
        f"{fair.search_seed} in {fair.search_cpu_seconds:.0f} CPU s; test scores of seeds {seeds}; {RULE}"
    )


def about_budgets() -> str:
    return (
        "what a client has after at most so many bytes, up and down; a method that cannot pay for a round "
        "has its base model; training alone sends nothing"
    )


def latex_fair(fair: FairReport) -> str:
    """Return a LaTeX table of the ends, and one of each score at equal bytes. They need booktabs."""
    rows = [cells(method, fair) for method in fair.methods]
    tables = [_tabular(f"{about(fair)}", heads(fair), rows)]
    for score in fair.scores if fair.budgets else ():
        names = ["method", *(budget(count) for count in fair.budgets)]
        at = [row for method in fair.methods for row in _rows_at(method, score)]
        tables.append(_tabular(f"{score}: {about_budgets()}; minus {fair.control}", names, at))
    return "\n".join(tables)


def _ends(fair: FairReport) -> Table:
    title = f"compared fairly, after all rounds: scores, and minus {fair.control}"
    table = Table(title=title, caption=about(fair))
    table.add_column("method", no_wrap=True)
    table.add_column("adapter")
    for head in ("rate", *fair.scores, "bytes", "CPU s"):
        table.add_column(head, justify="right")
    for method in fair.methods:
        first, *_, spent, seconds = cells(method, fair)
        scores = (_both(method.end(score), "\n") for score in fair.scores)
        table.add_row(first, method.adapter, f"{method.rate:g}", *scores, spent, seconds)
    return table


def _rates(fair: FairReport) -> Table:
    table = Table("method", "rate", "rates tried, and validation losses", title="learning rates")
    for method in fair.methods:
        if method.trials:
            table.add_row(method.method, f"{method.rate:g}", tried(method))
    return table


def _budgets(fair: FairReport, score: str) -> Table:
    title = f"{score} at equal bytes of a client, and minus {fair.control}"
    table = Table("method", title=title, caption=about_budgets())
    for count in fair.budgets:
        table.add_column(budget(count), justify="right")
    for method in fair.methods:
        table.add_row(method.method, *(_both(compared, "\n") for compared in method.budgets[score]))
    return table


def _both(compared: Compared, between: str) -> str:
    value = score_figure(compared.value)
    return value if compared.difference is None else value + between + difference_figure(compared)


def _rows_at(method: FairMethod, score: str) -> list[list[str]]:
    """Return the scores of a method at equal bytes, and below them its differences to the control."""
    compared = method.budgets[score]
    values = [method.method, *(score_figure(entry.value) for entry in compared)]
    differences = ["", *(difference_figure(entry) for entry in compared)]
    return [values] if all(entry.difference is None for entry in compared) else [values, differences]


def _tabular(caption: str, names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_latex(caption)}}}",
            r"\begin{tabular}{l" + "r" * (len(names) - 1) + "}",
            r"\toprule",
            " & ".join(map(_latex, names)) + r" \\",
            r"\midrule",
            *(" & ".join(map(_latex, row)) + r" \\" for row in rows),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _latex(text: str) -> str:
    """Return a text in LaTeX. A hyphen before a number is a minus, one within a word or `1e-05` stays."""
    if text == "-":
        return "--"
    special = {"_": r"\_", "%": r"\%", "&": r"\&", "#": r"\#", "±": r"$\pm$"}
    return "".join(special.get(letter, letter) for letter in _MINUS.sub("$-$", text))
