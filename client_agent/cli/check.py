"""The command `tessera agent check`: check everything that a run needs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from client_agent.cli.console import Config, Json, clear_errors

checking = typer.Typer()


@checking.command()
def check(
    config: Config = None,
    plan: Annotated[
        Path | None,
        typer.Option(help="JSON file of a federation plan to check, in place of the federation's own."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check configuration, device, model, data, policy and connection. Exit 1 if a check fails.

    Trains nothing and sends nothing of the silo. Before enrolment, checks that need the federation's plan use
    the default plan, or the one of --plan.

    Example: `tessera agent check --config silo.toml`
    """
    with clear_errors():
        from client_agent.preflight import findings

        results = findings(config, plan)
    if as_json:
        print(json.dumps([finding.document() for finding in results], indent=1))
    else:
        table = Table("what", "", "found")
        for finding in results:
            table.add_row(
                finding.subject,
                "[green]ok" if finding.passed else "[red]no",
                Text(finding.detail, overflow="fold"),
            )
        Console().print(table)
    if not all(finding.passed for finding in results):
        raise typer.Exit(1)
