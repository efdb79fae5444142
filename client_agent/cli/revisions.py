"""`tessera agent history` and `rollback`: the revisions of a silo's kept state, and which one is served."""

from __future__ import annotations

import json
import os
import sys
from functools import cache
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from client_agent.cli.console import Config, Json, clear_errors, opened_settings
from client_agent.errors import SettingsUnusable

if TYPE_CHECKING:
    from client_agent.revisions.history import HistoryRow
    from client_agent.settings import AgentSettings
    from client_agent.training.silo import Silo

revising = typer.Typer()

_NEWEST = ("newest", "latest")


@revising.command()
def history(config: Config = None, as_json: Json = False) -> None:
    """List the revisions: each state that this silo kept, with its round, digest and validation loss.

    A revision can be tried (`agent generate --revision 7`), exported (`agent export --revision 7`) and served
    again (`agent rollback 7`). Loads no model, and can be used while the agent runs.

    Example: `tessera agent history --config silo.toml`
    """
    with clear_errors(), opened_settings(config) as settings:
        from client_agent.revisions.history import read_history

        rows = read_history(settings)
        if as_json:
            print(json.dumps([row.document() for row in rows], indent=1))
        elif not rows:
            message = "no revisions yet; `tessera agent run` adds one after each round"
            Console(stderr=True).print(message, highlight=False)
        else:
            _show(rows)


@revising.command()
def rollback(
    revision: Annotated[
        str,
        typer.Argument(help="Number of the revision to serve, or `newest` to follow the newest one again."),
    ],
    config: Config = None,
) -> None:
    """Serve an older revision: `current` in the export folder names it until the next rollback.

    Training continues from the newest state. Later revisions are exported too, and do not replace the served
    revision. `tessera agent rollback newest` serves the newest revision that can be exported, and from then
    on each later one. Runs the command of `export.run` in the export folder. Loads the model only if the
    revision is no longer in this folder. Can be used while the agent runs.

    Examples:

    - `tessera agent rollback 7 --config silo.toml`

    - `tessera agent rollback newest --config silo.toml`
    """
    with clear_errors(), opened_settings(config) as settings:
        number = _number(revision)
        if "TESSERA_REVISION" in os.environ:
            # The agent waits for its command with the lock that a rollback needs.
            raise SettingsUnusable(
                "a command of export.run cannot roll back, because the agent waits for the command to end; "
                "let the command fail, and roll back afterwards"
            )
        if settings.export.after_round is None:
            option = f" --revision {number}" if number is not None else ""
            raise SettingsUnusable(
                "no revision is served: export.after_round is not set; set it in silo.toml, "
                f"or write a revision with `tessera agent export{option} --out FOLDER`"
            )
        from client_agent.identity.agent_folder import read_membership
        from client_agent.revisions.push import Push
        from client_agent.revisions.store import RevisionStore

        name = read_membership(settings.folder).name
        push, store = Push(settings, name), RevisionStore(settings.folder)
        served_before = push.served.current()
        rollback = push.roll_back(store, number, cache(lambda: _opened_silo(settings)), _await_agent)
        record = rollback.record
        for passed_over, reason in rollback.passed_over:
            print(f"revision {passed_over} cannot be exported and is passed over: {reason}", file=sys.stderr)
        previous = f"; before: {served_before}" if served_before not in (None, record.label) else ""
        print(f"{record.label} is served (round {record.round}){previous}")
        if number is None:
            print("each later revision is served once it is exported")
        else:
            print(
                f"training goes on from the newest state, and later revisions do not replace {record.label}; "
                "`tessera agent rollback newest` follows them again"
            )


def _number(revision: str) -> int | None:
    """Return the number of a revision; None = the newest one."""
    if revision in _NEWEST:
        return None
    # With its name, as servers and `agent status` write it.
    digits = revision.rpartition("@")[2]
    if not digits.isdecimal() or int(digits) < 1:
        raise SettingsUnusable(
            f"{revision!r} is not a revision; pass a number that `tessera agent history` lists, or newest"
        )
    return int(digits)


def _opened_silo(settings: AgentSettings) -> Silo:
    from client_agent.training.silo import open_silo

    return open_silo(settings)


def _await_agent() -> None:
    print("waiting for the running agent, which is exporting a revision ...", file=sys.stderr)


def _show(rows: list[HistoryRow]) -> None:
    # A silo has one base model, unless it enrolled again; the column would only make all others narrow.
    models = {row.revision.base_model for row in rows}
    title = None if len(models) > 1 else f"revisions of {models.pop()}"
    table = Table("revision", "state", "loss", "digest", "time (UTC)", "", title=title)
    if title is None:
        table.add_column("base model")
    for row in rows:
        revision = row.revision
        loss = "-" if revision.validation_loss is None else f"{revision.validation_loss:.4f}"
        table.add_row(
            str(revision.number),
            revision.origin,
            loss,
            revision.digest.removeprefix("sha256:")[:12],
            f"{revision.at[:10]} {revision.at[11:16]}",
            Text(", ".join(row.marks)),
            *([Text(revision.base_model)] if title is None else []),
        )
    Console().print(table)
