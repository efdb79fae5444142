"""Commands for rounds: list, show with scores and sums, relevance, watch."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.cli.client import (
    DEFAULT_URL,
    AsJson,
    Coordinator,
    Federation,
    Token,
    Url,
    interrupted,
    print_json,
)
from coordinator.cli.federation_facts import ENDED
from coordinator.cli.output import ago, fitting_table, print_table, text, traffic, until, wrapped
from schemas.messages.scores import LOSS, PERPLEXITY

if TYPE_CHECKING:
    from rich.console import RenderableType


app = typer.Typer(help="Show the rounds of a federation.", no_args_is_help=True)

_FRESH = timedelta(seconds=30)
_LOSSES = (
    "served, trained, final: held-out losses; by mixing: served minus trained of the round before, ± one "
    "standard error; declined: the client trained on from its own state; other scores: of the kept model"
)

_NO_ROUND = "No round yet; start the federation with `tessera federation start`."

Interval = Annotated[float, typer.Option(min=0.1, help="Seconds between two polls.")]
ScoreSetJson = Mapping[str, Mapping[str, Any]]


@app.command("list")
def list_rounds(
    federation: Federation, url: Url = DEFAULT_URL, token: Token = "", as_json: AsJson = False
) -> None:
    """List rounds, newest first."""
    coordinator = Coordinator(url, token)
    rounds = list(coordinator.pages(f"{coordinator.federation(federation)}/rounds"))
    if as_json:
        print_json(rounds)
        return
    from rich.console import Console

    means = [r["scores"] and r["scores"]["mean"] for r in rounds]
    more = other_names(means)
    shown = fitting_table(
        ["round", "state", "updates", "rejected", "opened", "bytes", "loss", "worst", "perplexity", *more],
        [
            (
                r["round"],
                _state(r),
                f"{r['counts']['arrived']} of {r['counts']['joined']}",
                r["counts"]["rejected"],
                ago(r["opened_at"]),
                traffic(r["bytes"]),
                score(mean, LOSS),
                score(r["scores"] and r["scores"]["worst"], LOSS),
                score(mean, PERPLEXITY),
                *(score(mean, name) for name in more),
            )
            for r, mean in zip(rounds, means, strict=True)
        ],
        optional=("bytes", "opened", "rejected", *reversed(more), "perplexity", "worst", "updates"),
        title="Scores are means over the clients' personal models; worst: the highest loss.",
    )
    Console().print(shown)


@app.command("show")
def show(
    federation: Federation,
    number: Annotated[
        int | None, typer.Argument(min=1, help="Round number.", show_default="the current round")
    ] = None,
    watching: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="Follow the round until it ends; without a number, follow each round as `round watch` does.",
        ),
    ] = False,
    interval: Interval = 1.0,
    url: Url = DEFAULT_URL,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Show a round: clients, states, bytes, scores, the secure sum and claims."""
    coordinator = Coordinator(url, token)
    if watching:
        _follow(_states(coordinator, federation, number, interval), as_json=as_json)
        return
    path = coordinator.federation(federation)
    if number is None:
        current = coordinator.get(path)["round"]
        if current is None:
            typer.echo(_NO_ROUND, err=True)
            raise typer.Exit(1)
        number = current["number"]
    details = coordinator.get(f"{path}/rounds/{number}")
    if as_json:
        print_json(details)
        return
    from rich.console import Console

    console = Console()
    console.print(_round(details))
    for claim in details["claims"]:
        console.print(f"- {wrapped(text(claim), console.width - 2, indent='  ')}", highlight=False)


@app.command("relevance")
def relevance(
    federation: Federation,
    number: Annotated[int, typer.Argument(min=1, help="Number of a published round.")],
    url: Url = DEFAULT_URL,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Show the relevance of clients to each other, its evidence, the served shares, and the guard's limits.

    The evidence of a pair of clients: `sketches` is the similarity of their gradient sketches, `changes` that
    of their changes in each round, and `agreement` the cosine of their whole updates.
    """
    coordinator = Coordinator(url, token)
    path = coordinator.federation(federation)
    matrix = coordinator.get(f"{path}/rounds/{number}/relevance")
    if as_json:
        print_json(matrix)
        return
    names = {client["client_id"]: client["name"] for client in coordinator.pages(f"{path}/clients")}
    print_table(
        ["client", "listens to", "sketches", "changes", "relevance", "served", "agreement", "held back"],
        [
            (
                names.get(row, row),
                names.get(column, column),
                _cell(matrix["similarity"], i, j),
                _cell(matrix.get("changes"), i, j),
                matrix["relevance"][i][j],
                _cell(matrix["served"], i, j),
                _cell(matrix["agreement"], i, j),
                ", ".join(matrix["held"][i][j]) if matrix["held"] else None,
            )
            for i, row in enumerate(matrix["rows"])
            for j, column in enumerate(matrix["clients"])
            if matrix["relevance"][i][j] > 0 or (matrix["served"] and matrix["served"][i][j] > 0)
        ],
    )


def _cell(matrix: list[list[float | None]] | None, row: int, column: int) -> float | None:
    return matrix[row][column] if matrix else None


@app.command("watch")
def watch(
    federation: Federation,
    interval: Interval = 1.0,
    url: Url = DEFAULT_URL,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Follow the current round until the federation is finished; with --json, print one line per change.

    Ctrl-C stops the display and not the round.

    Example: `tessera round watch FEDERATION --interval 5`
    """
    _follow(_states(Coordinator(url, token), federation, None, interval), as_json=as_json)


def _follow(states: Iterator[Any], *, as_json: bool) -> None:
    """Show each state of a round in place of the one before; None stands for no round yet."""
    try:
        _show_states(states, as_json=as_json)
    except KeyboardInterrupt:
        interrupted("the round continues; repeat the command to follow it again")


def _show_states(states: Iterator[Any], *, as_json: bool) -> None:
    if as_json:
        last = None
        for details in states:
            # One line per change, not per poll.
            if details is not None and details != last:
                typer.echo(json.dumps(details, ensure_ascii=False))
            last = details
        return
    from rich.live import Live

    with Live(refresh_per_second=4) as live:
        for details in states:
            live.update(_round(details) if details is not None else _NO_ROUND)


def _states(coordinator: Coordinator, federation: str, number: int | None, interval: float) -> Iterator[Any]:
    """Yield a round repeatedly, until it has ended.

    Without a number this is the current round, None before the first, until the federation has ended.
    """
    path = coordinator.federation(federation)
    while True:
        if number is None:
            state = coordinator.get(path)
            current = state["round"]
            yield current and coordinator.get(f"{path}/rounds/{current['number']}")
            # Only now, so that the last round is shown in its final state.
            if state["state"] == "finished":
                return
        else:
            details = coordinator.get(f"{path}/rounds/{number}")
            yield details
            if details["state"] in ENDED:
                return
        time.sleep(interval)


def _round(details: dict[str, Any]) -> RenderableType:
    counts = details["counts"]
    dropped = f", {counts['dropped']} dropped" if counts.get("dropped") else ""
    deadline = "" if details["state"] in ENDED else f", deadline {until(details['deadline'])}"
    title = (
        f"round {details['round']}: {_state(details)}, opened {ago(details['opened_at'])}{deadline}\n"
        f"{counts['joined']} joined, {counts['arrived']} arrived, {counts['late']} late, "
        f"{counts['rejected']} rejected{dropped}; {traffic(details['bytes'])}"
    )
    # A coordinator of an older version gives no advice.
    advice = [details["advice"]] if details.get("advice") else []
    sample, sums = _sample_lines(details.get("sample")), sum_lines(details.get("secure_sum"))
    title = "\n".join([title, *advice, *sample, *sums])
    clients = details["clients"]
    # A column of equal ranks says nothing.
    ranks = {c["rank"] for c in clients if c.get("rank") is not None}
    kept_scores = [c["scores"] and personal(c["scores"]) for c in clients]
    more = other_names(kept_scores)
    return fitting_table(
        [
            "client",
            "state",
            "progress",
            "joined",
            "received",
            "bytes",
            "norm",
            "rank",
            "epsilon",
            "training epsilon",
            "age",
            "served",
            "trained",
            "kept",
            "final",
            "by mixing",
            "perplexity",
            *more,
            "why",
        ],
        [
            (
                c["name"],
                c["state"],
                _progress(c.get("progress")),
                ago(c["joined_at"]),
                ago(c["received_at"]) if c["received_at"] else "-",
                traffic(c["bytes"]),
                c["norm"],
                c.get("rank") if len(ranks) > 1 else None,
                c["epsilon"],
                c.get("training_epsilon"),
                c["staleness"],
                *losses(c["scores"]),
                mixing(c["scores"]),
                score(scores, PERPLEXITY),
                *(score(scores, name) for name in more),
                c["reject_reason"],
            )
            for c, scores in zip(clients, kept_scores, strict=True)
        ],
        optional=(
            "epsilon",
            "training epsilon",
            "age",
            "norm",
            "rank",
            "bytes",
            "joined",
            "received",
            *reversed(more),
            "perplexity",
            "final",
            "kept",
            "why",
            "by mixing",
            "served",
        ),
        title=f"{title}\n{_LOSSES}",
    )


def _sample_lines(sample: dict[str, Any] | None) -> list[str]:
    """Return a line that names the drawn clients; none if all may take part."""
    if sample is None:
        return []
    places = f" for {sample['places']} places" if sample["places"] is not None else ""
    return [f"drawn{places}: {', '.join(sample['drawn']) or 'nobody yet'}"]


def _progress(report: dict[str, Any] | None) -> str | None:
    """Describe how far a client's training has come: `12 of 40, loss 1.840, 31 s left`.

    An old report says when it came instead: nobody knows whether that training still runs.
    """
    if report is None:
        return None
    loss = f", loss {report['loss']:.3f}" if report["loss"] is not None else ""
    age = datetime.now(UTC) - datetime.fromisoformat(report["at"])
    remaining = f"reported {ago(report['at'])}" if age > _FRESH else f"{report['seconds_left']:.0f} s left"
    return f"{report['step']} of {report['steps']}{loss}, {remaining}"


def _state(details: dict[str, Any]) -> str:
    return f"{details['state']} ({details['reason']})" if details["reason"] else str(details["state"])


def score(scores: ScoreSetJson | None, name: str) -> str | None:
    """Return a score in three decimals, as the dashboard page shows it; None without one."""
    if not scores or name not in scores:
        return None
    value = float(scores[name]["value"])
    return f"{value:.3f}" if value < 1000 else f"{value:.4g}"


def personal(scores: Mapping[str, Any]) -> ScoreSetJson:
    """Return the scores of a client's personal model: the final one if it keeps it, else the kept one."""
    # A client keeps its own model where the final weights are worse on its validation examples.
    final = scores["final"] if scores["final_kept"] else None
    result: ScoreSetJson = final or scores[scores["kept"]]
    return result


def losses(scores: Mapping[str, Any] | None) -> tuple[str | None, str | None, str | None, str | None]:
    """Return the loss as served and as trained, the name of the kept one, and the final loss."""
    if scores is None:
        return None, None, None, None
    served, trained, final = (score(scores[side], LOSS) for side in ("served", "trained", "final"))
    is_final_kept = final is not None and scores["final_kept"]
    return served, trained, "final" if is_final_kept else str(scores["kept"]), final


def mixing(scores: Mapping[str, Any] | None) -> str | None:
    """Return the change of the loss by mixing with its standard error; None if the client sent none."""
    change = scores["mixing"] if scores is not None else None
    if scores is None or change is None:
        return None
    text = f"{change['value']:+.3f} ± {change['error']:.3f}"
    if scores.get("began") == "trained":
        return f"{text} (declined)"
    return text if abs(change["value"]) >= 2 * change["error"] else f"{text} (noise)"


def other_names(sets: Iterable[ScoreSetJson | None]) -> list[str]:
    """Return the names that occur beside loss and perplexity, in order."""
    return sorted({name for scores in sets if scores for name in scores} - {LOSS, PERPLEXITY})


def sum_lines(summed: Mapping[str, Any] | None) -> list[str]:
    """Return a line for each session of a sum, and one for its result; [] for a round without a sum."""
    if summed is None:
        return []
    lines = [_session(session) for session in summed["sessions"]]
    if summed["counted"] is not None:
        lines.append(f"the sum has the updates of {summed['counted']} members{_losses(summed.get('losses'))}")
    return lines


def _session(session: Mapping[str, Any]) -> str:
    answered = ", ".join(f"{step} {members}" for step, members in session["answered"].items())
    reason = f" ({session['reason']})" if session["reason"] else ""
    return (
        f"{session['kind']} session {session['number']}: {session['state']}{reason}, {session['members']} "
        f"members{f'; answered: {answered}' if answered else ''}; {session['seconds']:.0f} s"
    )


def _losses(losses: Mapping[str, Any] | None) -> str:
    if losses is None:
        return ""
    means = ", ".join(f"{model} {loss['value']:.3f}" for model, loss in losses.items())
    return f"; mean loss: {means}"
