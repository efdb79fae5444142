"""Print a comparison's figures as tables. Computes nothing."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from client_agent.simulation.estimates import Estimate, Pairing
from client_agent.simulation.summary import BASELINES, Latecomer, Report


def show(report: Report, console: Console) -> None:
    """Print the main table, then groups and costs, and late joiners and lone clients where there are any."""
    console.print(_main(report))
    console.print(_costs(report))
    for title, table in (
        (
            "late joiners: exact match at their own steps, and when they pass the end of training alone",
            _late(report),
        ),
        ("clients without a peer in their group: exact match", _lone(report)),
    ):
        if table.row_count:
            table.title = title
            console.print(table)
    for label in report.missing:
        console.print(f"missing: {label}", highlight=False, markup=False, soft_wrap=True)


def figure(value: Estimate) -> str:
    """Write an accuracy with its standard error."""
    return f"{value.mean:.3f}" + (f" ± {value.error:.3f}" if value.error is not None else "")


def difference(value: Estimate) -> str:
    """Write a difference with its sign and standard error."""
    return f"{value.mean:+.3f}" + (f" ± {value.error:.3f}" if value.error is not None else "")


def amount(count: float) -> str:
    """Write bytes as people read them."""
    return f"{count / 1000:,.1f} kB" if count else "-"


def passing(late: Latecomer, baseline: str) -> str:
    """Write after how many steps, seed by seed, a late joiner is ahead of a baseline's end."""
    if baseline not in late.ahead_after:
        return "-"
    steps = ", ".join("never" if step is None else str(step) for step in late.ahead_after[baseline])
    return f"{steps} ({late.alone[baseline].mean:.2f})"


def _main(report: Report) -> Table:
    seeds = max(len(method.seeds) for method in report.methods)
    title = f"{report.study}: exact match after the last round, {seeds} {'seed' if seeds == 1 else 'seeds'}"
    table = Table("method", title=title)
    for name in ("mean", "worst client", *(f"against {name}" for name in BASELINES)):
        table.add_column(name, justify="right")
    for method in report.methods:
        table.add_row(method.method, figure(method.accuracy), figure(method.worst), *_against(method.against))
    return table


def _costs(report: Report) -> Table:
    groups = list(dict.fromkeys(group for method in report.methods for group in method.groups))
    table = Table("method", title="founders by group; bytes per client and round; CPU seconds")
    for name in (*groups, "up", "down", "CPU s"):
        table.add_column(name, justify="right")
    for method in report.methods:
        table.add_row(
            method.method,
            *(figure(method.groups[group]) for group in groups),
            amount(method.bytes_up),
            amount(method.bytes_down),
            f"{method.cpu_seconds:.0f}",
        )
    return table


def _late(report: Report) -> Table:
    ahead = (f"steps to pass {name}'s end" for name in BASELINES)
    table = Table("method", "silo", "exact match by own step", *ahead)
    for method in report.methods:
        for late in method.latecomers:
            curve = ", ".join(
                f"{step}: {value.mean:.2f}" for step, value in zip(late.steps, late.accuracy, strict=True)
            )
            table.add_row(method.method, late.name, curve, *(passing(late, name) for name in BASELINES))
    return table


def _lone(report: Report) -> Table:
    table = Table("method", "silo", "exact match", *(f"against {name}" for name in BASELINES))
    for method in report.methods:
        for lone in method.lone:
            table.add_row(method.method, lone.name, figure(lone.accuracy), *_against(lone.against))
    return table


def _against(pairs: Mapping[str, Pairing]) -> list[str]:
    return [difference(pairs[name].seeds) if name in pairs else "-" for name in BASELINES]
