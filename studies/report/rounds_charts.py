"""Pictures of what happened round by round, and of the errors of alignment, from recorded metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from studies.report.charts import ChartStyle, legend_beside
from studies.report.rounds import AlignmentSummary
from studies.report.summary import MethodSummary, Report
from studies.run_records import AlignmentRecord, RelevanceRecord

_INK = "#222222"
_ACROSS = 5
_MOST_ROUNDS = 6
_MARKED_BELOW = 16  # rounds, from which on markers of each round hide the line
_ERRORS: Final = (
    ("a", "inputs", "o"),
    ("b_token", "gradients, by token", "^"),
    ("b_task", "gradients, by task", "s"),
)


def client_losses(report: Report, styles: Mapping[str, ChartStyle]) -> Figure:
    """Draw each client's loss over its own local steps, a panel each; the band is one standard error."""
    names = list(report.examples)
    across = min(_ACROSS, len(names))
    down = ceil(len(names) / across)
    figure = Figure(figsize=(2.6 * across + 2.2, 2.3 * down), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False).flat
    for axes, name in zip(grid, names, strict=False):
        for method in report.methods:
            _loss(axes, method, name, styles[method.method])
        axes.set_title(name, fontsize=9)
        axes.set_xlim(left=0)
        axes.tick_params(labelsize=8)
    for axes in list(grid)[len(names) :]:
        axes.set_visible(False)
    figure.supxlabel("own local steps", fontsize=10)
    figure.supylabel("test loss after local steps", fontsize=10)
    legend_beside(figure, figure.axes[0])
    return figure


def _loss(axes: Axes, method: MethodSummary, name: str, style: ChartStyle) -> None:
    if name not in method.clients:
        return
    curve = method.clients[name]
    mean = [value.mean for value in curve.loss]
    errors = [value.error or 0.0 for value in curve.loss]
    axes.plot(
        curve.steps,
        mean,
        color=style.colour,
        linestyle=style.line,
        marker=style.marker if len(mean) < _MARKED_BELOW else None,
        markersize=4,
        label=method.method,
    )
    low = [m - e for m, e in zip(mean, errors, strict=True)]
    high = [m + e for m, e in zip(mean, errors, strict=True)]
    axes.fill_between(curve.steps, low, high, color=style.colour, alpha=0.12, linewidth=0)


def relevance_over_rounds(report: Report) -> Figure | None:
    """Draw the relevance of clients in up to six rounds, a row per method; None without relevance."""
    shown = [(m.method, m.relevance) for m in report.methods if m.relevance is not None]
    if not shown:
        return None
    columns = max(len(_spread(summary.rounds)) for _, summary in shown)
    largest = max(len(summary.rounds[-1].rows) for _, summary in shown)
    side = 1.1 + 0.09 * largest
    figure = Figure(figsize=(side * columns + 3, (side + 0.3) * len(shown) + 1.2), layout="constrained")
    grid = figure.subplots(len(shown), columns, squeeze=False)
    image: Any = None
    for number, (row, (method, summary)) in enumerate(zip(grid, shown, strict=True), start=1):
        for axes in row[len(_spread(summary.rounds)) :]:
            axes.set_visible(False)
        for index, (axes, record) in enumerate(zip(row, _spread(summary.rounds), strict=False)):
            image = _matrix(axes, record, left=index == 0, below=number == len(shown))
            axes.set_title(f"round {record.round}", fontsize=9)
        row[0].set_ylabel(f"{method}, seed {summary.seed}", fontsize=9)
    figure.colorbar(image, ax=grid.ravel().tolist(), label="weight of the column's client", shrink=0.8)
    return figure


def _matrix(axes: Axes, record: RelevanceRecord, *, left: bool, below: bool) -> Any:
    """Draw one round; `left` and `below` are where clients are named."""
    # The same scale in all rounds, so that colours can be compared.
    image = axes.imshow(record.weights, vmin=0, vmax=1, cmap="viridis", aspect="equal")
    axes.grid(visible=False)
    axes.set_yticks(range(len(record.rows)), record.rows if left else [""] * len(record.rows), fontsize=7)
    columns = record.clients if below else [""] * len(record.clients)
    axes.set_xticks(range(len(columns)), columns, rotation=90, fontsize=7)
    return image


def _spread(rounds: Sequence[RelevanceRecord]) -> list[RelevanceRecord]:
    """Return at most six rounds at equal distances, the first and the last among them."""
    last = len(rounds) - 1
    count = min(len(rounds), _MOST_ROUNDS)
    # Evenly spread, with the first and the last round.
    return [rounds[round(i * last / max(1, count - 1))] for i in range(count)]


def alignment_errors(report: Report) -> Figure | None:
    """Draw the held-out errors of each base model's modules, shared ones shaded; None without packs."""
    fitted = _fitted(report)
    if not fitted:
        return None
    figure = Figure(figsize=(11, 3.1 * len(fitted)), layout="constrained")
    grid = figure.subplots(len(fitted), squeeze=False)[:, 0]
    for axes, (methods, summary, pack) in zip(grid, fitted, strict=True):
        modules = list(pack.errors)
        for place, module in enumerate(modules):
            if module in pack.selected:
                axes.axvspan(place - 0.5, place + 0.5, color="#d9ead3", linewidth=0)
        for index, (field, label, marker) in enumerate(_ERRORS):
            values = [getattr(pack.errors[module], field) for module in modules]
            colour = ChartStyle.nth(index + 2).colour
            axes.plot(range(len(modules)), values, marker, color=colour, markersize=5, label=label)
        axes.axhline(summary.max_error, color=_INK, linewidth=0.8, linestyle="--", label="largest shared")
        axes.set_xticks(range(len(modules)), modules, rotation=90, fontsize=8)
        axes.set(ylabel="relative error", xlim=(-0.5, len(modules) - 0.5))
        axes.set_ylim(bottom=0)
        axes.set_title(f"{pack.base_model} ({', '.join(methods)})", fontsize=10)
        axes.grid(visible=False, axis="x")
    legend_beside(figure, grid[0])
    return figure


def _fitted(report: Report) -> list[tuple[list[str], AlignmentSummary, AlignmentRecord]]:
    """Return each different pack with its methods; the pivot's has no errors."""
    fitted: list[tuple[list[str], AlignmentSummary, AlignmentRecord]] = []
    for method in report.methods:
        for pack in method.alignment.packs if method.alignment is not None else []:
            # The pivot's own pack has no errors, and random frames are not fitted.
            if method.alignment is None or not any(e.b_task for e in pack.errors.values()):
                continue
            # Methods with the same plan of alignment share packs, and one picture is enough.
            same = next((entry for entry in fitted if entry[2] == pack), None)
            if same is not None:
                same[0].append(method.method)
            else:
                fitted.append(([method.method], method.alignment, pack))
    return fitted


def round_bytes(report: Report, styles: Mapping[str, ChartStyle]) -> Figure | None:
    """Draw the encoded bytes of a client by round, up and down; None where nothing travels."""
    methods = [method for method in report.methods if method.bytes_up]
    if not methods:
        return None
    figure = Figure(figsize=(11, 3.8), layout="constrained")
    grid = figure.subplots(1, 2, sharey=True)
    for axes, direction in zip(grid, ("up", "down"), strict=True):
        for method in methods:
            values = method.by_round.up if direction == "up" else method.by_round.down
            style = styles[method.method]
            axes.plot(
                range(1, len(values) + 1),
                [value / 1000 for value in values],
                color=style.colour,
                linestyle=style.line,
                marker=style.marker if len(values) < _MARKED_BELOW else None,
                markersize=5,
                label=method.method,
            )
        axes.set(xlabel="round")
        axes.set_title(direction, fontsize=10)
        axes.xaxis.get_major_locator().set_params(integer=True)
    grid[0].set_ylim(bottom=0)
    grid[0].set_ylabel("kB per client (encoded bodies)")
    legend_beside(figure, grid[0])
    return figure
