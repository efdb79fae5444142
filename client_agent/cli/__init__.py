"""The commands `tessera agent ...` and `tessera compare`; each file of this folder is a group of commands."""

from __future__ import annotations

import typer

from client_agent.cli import agent as cli_agent
from client_agent.cli import alignment, compare, data, export, generate, pivot
from schemas.private_files import close_umask

_GROUPS = (
    cli_agent.agent,
    generate.generating,
    export.exporting,
    alignment.aligning,
    data.data,
    pivot.pivot,
)


def commands(app: typer.Typer) -> None:
    """Add the agent's commands to `tessera`."""
    agent = typer.Typer(
        name="agent",
        help="Run a silo's agent: enrol once, check, then keep it running.",
        no_args_is_help=True,
    )
    agent.callback()(_private_files)
    for group in _GROUPS:
        agent.add_typer(group)
    app.add_typer(agent)
    app.add_typer(compare.compare)


def _private_files() -> None:
    """Run a silo's agent: enrol once, check, then keep it running."""
    close_umask()
