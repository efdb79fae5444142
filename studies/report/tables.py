"""Tables of a comparison on the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from schemas.messages.scores import LOSS
from studies.outcomes import Rule
from studies.report.courses import Compared
from studies.report.estimates import Estimate, Pairing, verdict_of
from studies.report.runs import ScoreFigures
from studies.report.summary import Latecomer, MethodSummary, Report
from studies.report.tasks import rows_of
from studies.report.transfer import Transfer


def show(report: Report, console: Console) -> None:
    """Print the tables of losses, metrics, transfer, equal bytes and costs, and of other findings if any."""
    if report.missing:
        console.print(
            f"incomplete results, runs missing: {len(report.missing)}; repeat the command to run them",
            style="bold red",
            markup=False,
        )
    # First, so that nobody reads means of half a study as its results.
    for label in report.missing:
        console.print(f"missing: {label}", highlight=False, markup=False, soft_wrap=True)
    console.print(_main(report))
    for title, table in (
        ("metrics on test items: mean / worst client" + _minus(report), _metrics(report)),
        (
            "federated minus alone, in loss: same data and steps, same adapter and choice of the rate unless "
            "noted; below 0 is better",
            _transfer(report),
        ),
        ("scores of each task on its test items: mean over the clients that have it", _tasks(report)),
        ("change of the loss by mixing" + (", and forgetting" if _forgets(report) else ""), _mixing(report)),
        *(
            (f"{score} at equal bytes of a client{_minus(report)}", _at_budgets(report, score))
            for score in report.course_scores
        ),
        ("adapters, learning rates, bytes of a client by round and in all, CPU seconds", _costs(report)),
        ("learning rates tried, and their validation losses", _trials(report)),
        (f"the states at the {'end' if report.rules[0] == 'best' else 'best'}: loss", _other_rule(report)),
        (
            "late joiners: loss at their own steps; steps until they stay ahead of training alone, per seed; "
            "difference of the results",
            _late(report),
        ),
        ("clients without a peer in their group: loss", _lone(report)),
        (
            "importance learnt by founders, last round; spread: of a client's modules, as a share of their "
            "mean; agreement: rank correlation of modules between founders of one base model",
            _importance(report),
        ),
    ):
        # A study without latecomers or metrics has no such table.
        if table.row_count:
            table.title = title
            console.print(table)


def figure(value: Estimate) -> str:
    return f"{value.mean:.3f}" + (f" ± {value.error:.3f}" if value.error is not None else "")


def difference(value: Estimate) -> str:
    return f"{value.mean:+.3f}" + (f" ± {value.error:.3f}" if value.error is not None else "")


def judged(value: Estimate) -> str:
    """Format a paired difference, and whether it is noise."""
    verdict = verdict_of(value)
    return difference(value) + (f" ({verdict})" if verdict == "noise" else "")


def compared_figure(compared: Compared, between: str = "\n") -> str:
    """Format a score and, if it is not the control's own, its difference to the control's."""
    value = figure(compared.value)
    return value if compared.difference is None else value + between + judged(compared.difference)


def control(transfer: Transfer) -> str:
    """Format the control, and what it does not have in common with the method."""
    differs = " and ".join(f"other {name}" for name in transfer.differs)
    return f"{transfer.control} ({differs})" if differs else transfer.control


def losing(transfer: Transfer) -> str:
    """Format how many clients lose beyond the noise."""
    if transfer.unjudged:
        return "unknown: one seed"
    return f"{len(transfer.losers)} of {len(transfer.clients)}"


def rates(method: MethodSummary) -> str:
    """Format the learning rates of a method's clients: the one rate, or the least and the largest."""
    used = sorted({rate for client_rates in method.rates.values() for rate in client_rates})
    return f"{used[0]:g}" if len(used) == 1 else f"{used[0]:g} to {used[-1]:g}"


def tried(method: MethodSummary) -> str:
    """Format the rates that a fair comparison tried, with their validation losses."""
    return ", ".join(
        f"{trial.rate:g}: " + (f"{trial.loss:.3f}" if trial.loss is not None else "diverged")
        for trial in method.trials
    )


def explain(rule: Rule) -> str:
    """Explain in words which state of a client is its result."""
    if rule == "best":
        return "the state of each client with the least validation loss"
    return "the state at the end: the final weights, or after the last step alone"


def remarks(report: Report) -> list[str]:
    """Return remarks about methods: what they have in common, and what sets some of them apart."""
    about = {
        "served": "what clients are served counts, not what their own steps make of it",
        "trained": "what clients' own steps make of it counts, not what they are served",
    }
    lines = [f"{m.method}: {about[m.states]}" for m in report.methods if m.states != "all"]
    if report.search_seed is not None:
        lines.append(
            "methods with the same kind of adapter train the same adapter"
            + (f"; learning rates were searched with seed {report.search_seed}" if report.is_searched else "")
        )
    lines += [
        f"{m.method}: clients take part in different rounds, so that nothing is shown after each round or at "
        "equal bytes" + (", nor are differences of other methods to it" if m.method == report.control else "")
        for m in report.methods
        if m.course is None and report.courses
    ]
    if report.cut:
        counts = ", ".join(f"{name} {count.cut} of {count.examples}" for name, count in report.cut.items())
        lines.append(f"texts longer than training.max_length, which are cut: {counts}")
    return lines + [
        f"{m.method}: each client trains {m.adapters} adapters in all steps, {m.adapters} times the work"
        for m in report.methods
        if m.adapters > 1
    ]


def about_budgets() -> str:
    return (
        "what a client has after at most so many bytes, up and down; a method that cannot pay for a round "
        "has its base model; training alone sends nothing"
    )


def budget(count: float) -> str:
    """Format bytes of a client in all rounds; a dash for none."""
    if not count:
        return "-"
    return f"{count / 1e6:,.2f} MB" if count >= 1e6 else f"{count / 1e3:,.0f} kB"


def amount(count: float) -> str:
    return f"{count / 1000:,.1f} kB" if count else "-"


def passing(late: Latecomer, baseline: str) -> str:
    """Format, per seed, the steps after which a late joiner stays below a baseline's loss."""
    if baseline not in late.ahead_after:
        return "-"
    within = f"not within {late.curve.steps[-1]} steps"
    steps = ", ".join(within if step is None else str(step) for step in late.ahead_after[baseline])
    return f"{steps} ({late.alone[baseline].mean:.3f})"


def seeds_of(method: MethodSummary, report: Report) -> str:
    """Format the number of seeds with results, and of all seeds if some are missing."""
    available, requested = len(method.seeds), len(report.seeds)
    return str(available) if available == requested else f"{available} of {requested}"


def amounts(report: Report) -> str:
    """Format the training amounts, test items and base models of all clients."""
    methods = report.methods
    trained = " or ".join(
        dict.fromkeys(
            f"{m.rounds} rounds × {m.steps_per_round} steps, batches of {m.batch_size}" + _drawn(m, report)
            for m in methods
        )
    )
    counts = sorted(set(report.examples.values()))
    example_counts = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    models = ", ".join(f"{count} × {slug}" for slug, count in Counter(report.models.values()).items())
    data = f"{example_counts} training examples and at most {report.tests} test items per silo"
    return f"{trained}; {data}; {models}"


def _drawn(method: MethodSummary, report: Report) -> str:
    """Format how many clients take part in a round, if it draws them."""
    if method.clients_per_round is None:
        return ""
    return f" ({method.method}: {method.clients_per_round} of {len(report.models)} clients in each round)"


def _main(report: Report) -> Table:
    paired = len(report.paired_seeds)
    title = f"{report.study}: test loss of {explain(report.rules[0])}; n = seeds of the means"
    table = Table("method", title=title, caption="\n".join([amounts(report), *remarks(report)]))
    against = (f"against {name} (n = {paired})" for name in report.baselines)
    for name in ("n", "mean", "worst client", *against):
        table.add_column(name, justify="right")
    for method in report.methods:
        table.add_row(
            method.method,
            seeds_of(method, report),
            figure(method.loss.mean),
            figure(method.loss.worst),
            *_against(method.loss.against, report.baselines),
        )
    return table


def _metrics(report: Report) -> Table:
    table = Table("method")
    for name in report.metrics:
        every = (method.scores[report.rules[0]].get(name) for method in report.methods)
        # All methods score the same items.
        count = next(score.count for score in every if score is not None)
        table.add_column(f"{name} ({count} items)", justify="right")
    if report.metrics:
        for method in report.methods:
            scores = [method.scores[report.rules[0]].get(name) for name in report.metrics]
            table.add_row(method.method, *(_metric(score, report) for score in scores))
    return table


def _metric(score: ScoreFigures | None, report: Report) -> str:
    if score is None:
        return "-"
    values = f"{figure(score.mean)} / {score.worst.mean:.3f}"
    pair = score.against.get(report.control) if report.control is not None else None
    return values if pair is None else f"{values}\n{judged(pair.seeds)}"


def _minus(report: Report) -> str:
    return f", and minus {report.control}" if report.control is not None else ""


def _tasks(report: Report) -> Table:
    table = Table("task", "score", *(method.method for method in report.methods))
    for row in rows_of([method.main_tasks for method in report.methods]):
        table.add_row(row.task, row.score, *(figure(v) if v is not None else "-" for v in row.values))
    return table


def _transfer(report: Report) -> Table:
    table = Table("method", "control")
    for name in ("difference", "clients that lose", "worst client"):
        table.add_column(name, justify="right")
    for method in report.methods:
        transfer = method.main_transfer
        if transfer is not None:
            worst = f"{transfer.worst_client} {judged(transfer.worst)}"
            table.add_row(
                method.method, control(transfer), judged(transfer.loss.seeds), losing(transfer), worst
            )
    return table


def searches(report: Report) -> str:
    """Format the CPU seconds of all searches of a learning rate; an empty text without a search."""
    if not report.search_cpu_seconds:
        return ""
    return f"rate searches, shared by methods and not in their costs: {report.search_cpu_seconds:.0f} CPU s"


def _mixing(report: Report) -> Table:
    table = Table("method")
    is_measured = _forgets(report)
    is_declined = any(method.declined is not None for method in report.methods)
    caption = "declined: rounds in which a client trained on from its own state, as the served one was worse"
    table.caption = caption if is_declined else None
    columns = ["by mixing", *(["declined"] if is_declined else []), *(["forgetting"] if is_measured else [])]
    for name in columns:
        table.add_column(name, justify="right")
    for method in report.methods:
        cells = [judged(method.mixing) if method.mixing is not None else "-"]
        if is_declined:
            cells.append(f"{method.declined:.0%}" if method.declined is not None else "-")
        if is_measured:
            cells.append(difference(method.forgetting) if method.forgetting is not None else "-")
        if any(cell != "-" for cell in cells):
            table.add_row(method.method, *cells)
    return table


def _forgets(report: Report) -> bool:
    """Whether forgetting was measured."""
    return any(method.forgetting is not None for method in report.methods)


def _at_budgets(report: Report, score: str) -> Table:
    table = Table("method", caption=about_budgets() if score == LOSS else None)
    for count in report.budgets:
        table.add_column(budget(count), justify="right")
    if report.compares_bytes:
        for name, course in report.courses.items():
            table.add_row(name, *map(compared_figure, course.budgets[score]))
    return table


def _trials(report: Report) -> Table:
    table = Table("method", "rates")
    for method in report.methods:
        if method.trials:
            table.add_row(method.method, tried(method))
    return table


def _costs(report: Report) -> Table:
    groups = list(dict.fromkeys(group for method in report.methods for group in method.loss.groups))
    table = Table("method", "adapter", caption=searches(report))
    table.columns[0].overflow = "fold"
    for name in (*(f"loss of {group}" for group in groups), "rates", "up", "down", "in all", "CPU s"):
        table.add_column(name, justify="right")
    for method in report.methods:
        group_values = (method.loss.groups.get(group) for group in groups)
        table.add_row(
            method.method,
            method.adapter,
            *(figure(value) if value is not None else "-" for value in group_values),
            rates(method),
            amount(method.bytes_up),
            amount(method.bytes_down),
            budget(method.course.bytes[-1]) if method.course is not None else "-",
            f"{method.cpu_seconds:.0f}",
        )
    return table


def _other_rule(report: Report) -> Table:
    table = Table("method")
    for name in ("mean", "worst client", "federated minus alone"):
        table.add_column(name, justify="right")
    for rule in report.rules[1:]:
        for method in report.methods:
            loss, transfer = method.scores[rule][LOSS], method.transfer.get(rule)
            minus = judged(transfer.loss.seeds) if transfer is not None else "-"
            table.add_row(method.method, figure(loss.mean), figure(loss.worst), minus)
    return table


def _late(report: Report) -> Table:
    table = Table("method", "silo", "by own step", "baseline", "steps to stay ahead", "difference")
    for column in table.columns:
        column.overflow = "fold"  # keeps names whole on a narrow terminal
    for method in report.methods:
        for late in method.latecomers:
            curve = ", ".join(
                f"{step}: {value.mean:.2f}"
                for step, value in zip(late.curve.steps, late.curve.loss, strict=True)
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
    table = Table("method", "silo", "loss", *(f"against {name}" for name in report.baselines))
    for method in report.methods:
        for lone in method.lone:
            table.add_row(
                method.method, lone.name, figure(lone.loss), *_against(lone.against, report.baselines)
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
    return [judged(pairs[name].seeds) if name in pairs else "-" for name in baselines]
