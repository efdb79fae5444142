"""Rounds as they happen."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.cli.client import DEFAULT_URL, AsJson, Coordinator, Token, Url, print_json
from coordinator.cli.output import ago, print_table, table, traffic, until

if TYPE_CHECKING:
    from rich.console import RenderableType

app = typer.Typer(help="The rounds of a federation.", no_args_is_help=True)

Federation = Annotated[str, typer.Argument(help="The federation's id.")]


@app.command("list")
def list_rounds(
    federation: Federation, url: Url = DEFAULT_URL, token: Token = "", as_json: AsJson = False
) -> None:
    """List rounds, newest first."""
    found = list(Coordinator(url, token).pages(f"/v1/federations/{federation}/rounds"))
    if as_json:
        print_json(found)
        return
    print_table(
        ["round", "state", "opened", "joined", "arrived", "rejected", "bytes", "mean loss", "mean exact"],
        [
            (
                r["round"],
                _state(r),
                ago(r["opened_at"]),
                r["counts"]["joined"],
                r["counts"]["arrived"],
                r["counts"]["rejected"],
                traffic(r["bytes"]),
                *_scores(r["scores"] and r["scores"]["mean"]),
            )
            for r in found
        ],
    )


@app.command("show")
def show(
    federation: Federation,
    number: Annotated[int, typer.Argument(min=1, help="The round's number.")],
    url: Url = DEFAULT_URL,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Show who is in a round, how far, with how many bytes and what score, and what may be claimed."""
    found = Coordinator(url, token).get(f"/v1/federations/{federation}/rounds/{number}")
    if as_json:
        print_json(found)
        return
    from rich.console import Console

    console = Console()
    console.print(_round(found))
    for claim in found["claims"]:
        console.print(f"- {claim}", highlight=False)


@app.command("relevance")
def relevance(
    federation: Federation,
    number: Annotated[int, typer.Argument(min=1, help="A published round's number.")],
    url: Url = DEFAULT_URL,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Show who listened to whom, what was served of it, and why less than relevance says."""
    coordinator = Coordinator(url, token)
    path = f"/v1/federations/{federation}"
    found = coordinator.get(f"{path}/rounds/{number}/relevance")
    if as_json:
        print_json(found)
        return
    names = {client["client_id"]: client["name"] for client in coordinator.pages(f"{path}/clients")}
    print_table(
        ["client", "listens to", "relevance", "served", "agreement", "held back"],
        [
            (
                names.get(row, row),
                names.get(column, column),
                found["relevance"][i][j],
                found["served"][i][j] if found["served"] else None,
                found["agreement"][i][j] if found["agreement"] else None,
                ", ".join(found["held"][i][j]) if found["held"] else None,
            )
            for i, row in enumerate(found["rows"])
            for j, column in enumerate(found["clients"])
            if found["relevance"][i][j] > 0 or (found["served"] and found["served"][i][j] > 0)
        ],
    )


@app.command("watch")
def watch(
    federation: Federation,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 1.0,
    url: Url = DEFAULT_URL,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Watch the current round live until the federation is finished; with --json a line per change."""
    seen = _current_rounds(Coordinator(url, token), federation, interval)
    if as_json:
        last = None
        for found in seen:
            if found is not None and found != last:
                typer.echo(json.dumps(found, ensure_ascii=False))
            last = found
        return
    from rich.live import Live

    with Live(refresh_per_second=4) as live:
        for found in seen:
            live.update(_round(found) if found is not None else "No round yet.")


def _current_rounds(coordinator: Coordinator, federation: str, interval: float) -> Iterator[Any]:
    """Look at the current round again and again; None before the first; ends with the federation."""
    while True:
        state = coordinator.get(f"/v1/federations/{federation}")
        current = state["round"]
        yield current and coordinator.get(f"/v1/federations/{federation}/rounds/{current['number']}")
        if state["state"] == "finished":
            return
        time.sleep(interval)


def _round(found: dict[str, Any]) -> RenderableType:
    counts = found["counts"]
    title = (
        f"round {found['round']}: {_state(found)}, opened {ago(found['opened_at'])}, "
        f"deadline {until(found['deadline'])}\n"
        f"{counts['joined']} joined, {counts['arrived']} arrived, {counts['late']} late, "
        f"{counts['rejected']} rejected; {traffic(found['bytes'])}"
    )
    measured = ["norm", "epsilon", "age", "loss", "exact", "why"]
    columns = ["client", "state", "joined", "received", "bytes", *measured]
    return table(
        columns,
        [
            (
                c["name"],
                c["state"],
                ago(c["joined_at"]),
                ago(c["received_at"]) if c["received_at"] else "-",
                traffic(c["bytes"]),
                c["norm"],
                c["epsilon"],
                c["staleness"],
                *_scores(c["scores"] and c["scores"]["after"]),
                c["reject_reason"],
            )
            for c in found["clients"]
        ],
        title=title,
    )


def _scores(metrics: dict[str, float] | None) -> tuple[float | None, float | None]:
    return (metrics["loss"], metrics["exact_match"]) if metrics else (None, None)


def _state(found: dict[str, Any]) -> str:
    return f"{found['state']} ({found['reason']})" if found["reason"] else str(found["state"])
