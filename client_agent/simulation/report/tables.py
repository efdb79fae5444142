"""Tables of a comparison on the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from client_agent.simulation.report.estimates import Estimate, Pairing
from client_agent.simulation.report.summary import Latecomer, MethodSummary, Report


def show(report: Report, console: Console) -> None:
    """Print the tables of accuracy and costs, and of importance, late joiners and lone clients if any."""
    if report.missing:
        console.print(
            f"incomplete results, runs missing: {len(report.missing)}; repeat the command to run them",
            style="bold red",
            markup=False,
        )
    for label in report.missing:
        console.print(f"missing: {label}", highlight=False, markup=False, soft_wrap=True)
    console.print(_main(report))
    console.print(_costs(report))
    for title, table in (
        (
            "late joiners: exact match at their own steps; steps until they stay ahead of training alone, "
            "per seed; difference of the final accuracies",
            _late(report),
        ),
        ("clients without a peer in their group: exact match", _lone(report)),
        (
            "importance learnt by founders, last round; spread: of a client's modules, as a share of their "
            "mean; agreement: rank correlation of modules between founders of one base model",
            _importance(report),
        ),
    ):
        if table.row_count:
            table.title = title
            console.print(table)


def figure(value: Estimate) -> str:
    return f"{value.mean:.3f}" + (f" ± {value.error:.3f}" if value.error is not None else "")


def difference(value: Estimate) -> str:
    return f"{value.mean:+.3f}" + (f" ± {value.error:.3f}" if value.error is not None else "")


def amount(count: float) -> str:
    return f"{count / 1000:,.1f} kB" if count else "-"


def passing(late: Latecomer, baseline: str) -> str:
    """Format, per seed, the steps after which a late joiner stays ahead of a baseline's final accuracy."""
    if baseline not in late.ahead_after:
        return "-"
    within = f"not within {late.steps[-1]} steps"
    steps = ", ".join(within if step is None else str(step) for step in late.ahead_after[baseline])
    return f"{steps} ({late.alone[baseline].mean:.2f})"


def seeds_of(method: MethodSummary, report: Report) -> str:
    """Format the number of seeds with results, and of all seeds if some are missing."""
    available, requested = len(method.seeds), len(report.seeds)
    return str(available) if available == requested else f"{available} of {requested}"


def amounts(report: Report) -> str:
    """Format the training amounts, test items and base models of all clients."""
    methods = report.methods
    trained = " or ".join(
        dict.fromkeys(
            f"{m.rounds} rounds × {m.steps_per_round} steps, batches of {m.batch_size}" for m in methods
        )
    )
    counts = sorted(set(report.examples.values()))
    example_counts = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    models = ", ".join(f"{count} × {slug}" for slug, count in Counter(report.models.values()).items())
    data = f"{example_counts} training examples and at most {report.tests} test items per silo"
    return f"{trained}; {data}; {models}"


def _main(report: Report) -> Table:
    paired = len(report.paired_seeds)
    title = f"{report.study}: exact match after the last round; n = seeds of the means"
    table = Table("method", title=title, caption=amounts(report))
    against = (f"against {name} (n = {paired})" for name in report.baselines)
    for name in ("n", "mean", "worst client", *against):
        table.add_column(name, justify="right")
    for method in report.methods:
        table.add_row(
            method.method,
            seeds_of(method, report),
            figure(method.accuracy),
            figure(method.worst),
            *_against(method.against, report.baselines),
        )
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
    table = Table("method", "silo", "by own step", "baseline", "steps to stay ahead", "final difference")
    for column in table.columns:
        column.overflow = "fold"  # keeps names whole on a narrow terminal
    for method in report.methods:
        for late in method.latecomers:
            curve = ", ".join(
                f"{step}: {value.mean:.2f}" for step, value in zip(late.steps, late.accuracy, strict=True)
            )
            differences = _against(late.against, report.baselines)
            about = (method.method, late.name, curve)
            for name, ahead in zip(report.baselines, differences, strict=True):
                table.add_row(*about, name, passing(late, name), ahead)
                about = ("", "", "")  # one row per baseline fits a terminal
            if not report.baselines:
                table.add_row(*about, "-", "-", "-")
    return table


def _lone(report: Report) -> Table:
    table = Table("method", "silo", "exact match", *(f"against {name}" for name in report.baselines))
    for method in report.methods:
        for lone in method.lone:
            table.add_row(
                method.method, lone.name, figure(lone.accuracy), *_against(lone.against, report.baselines)
            )
    return table


def _importance(report: Report) -> Table:
    table = Table("method")
    for name in ("sent", "unsent / learnt", "KL to the prior", "spread", "agreement"):
        table.add_column(name, justify="right")
    for method in report.methods:
        if (summary := method.importance) is not None:
            cells = (
                figure(value) for value in (summary.density, summary.residual, summary.kl, summary.spread)
            )
            agreement = difference(summary.agreement) if summary.agreement is not None else "-"
            table.add_row(method.method, *cells, agreement)
    return table


def _against(pairs: Mapping[str, Pairing], baselines: Sequence[str]) -> list[str]:
    return [difference(pairs[name].seeds) if name in pairs else "-" for name in baselines]
