"""The command that shows a bank of experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from coordinator.cli.client import DEFAULT_URL, AsJson, Coordinator, Federation, Token, Url, print_json
from coordinator.cli.output import fitting_table, size, text, wrapped


def experts(
    federation: Federation,
    url: Url = DEFAULT_URL,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Show the bank of experts: status, members, prior, and the reason of each change."""
    coordinator = Coordinator(url, token)
    bank = _whole_bank(coordinator, f"{coordinator.federation(federation)}/experts")
    if as_json:
        print_json(bank)
        return
    if not bank["experts"]:
        typer.echo("This federation has no bank of experts; create a federation with the strategy fed_vemoe.")
        return
    from rich.console import Console

    console = Console()
    last = bank["rounds"][0] if bank["rounds"] else None
    shown = fitting_table(
        ["expert", "status", "used by", "prior", "utilisation", "born", "ended", "revision", "size"],
        [
            (
                expert["expert"],
                _status(expert),
                _users(last, expert),
                f"{expert['prior']:.3f}",
                f"{expert['utilisation']:.3f}" if expert["utilisation"] is not None else None,
                expert["born"],
                expert["ended"],
                expert["revision"],
                size(expert["bytes"]),
            )
            for expert in bank["experts"]
        ],
        optional=("size", "revision", "utilisation", "ended", "born"),
        title=_title(last),
    )
    console.print(shown)
    for event in bank["events"]:
        line = f"round {event['round']}: expert {event['expert']} {event['change']}: {text(event['reason'])}"
        console.print(f"- {wrapped(line, console.width - 2, indent='  ')}", highlight=False)


def _whole_bank(coordinator: Coordinator, path: str) -> dict[str, Any]:
    """Return a bank with the rounds and changes of all pages."""
    page = coordinator.get(path)
    bank = {name: page[name] for name in ("experts", "rounds", "events")}
    # Pages are of rounds: every page has all experts.
    while page["next"] is not None:
        page = coordinator.get(path, after=page["next"])
        bank["rounds"] += page["rounds"]
        bank["events"] += page["events"]
    return bank


def _status(expert: Mapping[str, Any]) -> str:
    into = expert["merged_into"]
    return f"merged into {into}" if into is not None else str(expert["status"])


def _users(last: Mapping[str, Any] | None, expert: Mapping[str, Any]) -> str | None:
    """Return how many members of the last round used an expert; None if it was not counted."""
    if last is None or str(expert["expert"]) not in last["users"]:
        return None
    return f"{last['users'][str(expert['expert'])]} of {last['members']}"


def _title(last: Mapping[str, Any] | None) -> str:
    if last is None:
        return "No round was summed yet."
    return f"used by: members in round {last['round']}; {last['rejects']} of them reject all experts."
