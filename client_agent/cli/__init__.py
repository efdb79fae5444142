"""`tessera agent ...`: what an engineer in a silo types. A file beside this one is a group of commands."""

from __future__ import annotations

import typer

from client_agent.cli import adapters, alignment, compare, pivot
from client_agent.cli import agent as cli_agent
from schemas.private_files import close_umask

_GROUPS = (cli_agent.agent, adapters.adapters, alignment.aligning, alignment.anchors, pivot.pivot)


def commands(app: typer.Typer) -> None:
    """Add the agent's commands to `tessera`."""
    agent = typer.Typer(
        name="agent",
        help="Run a silo's agent: enrol once, check, then leave it running.",
        no_args_is_help=True,
    )
    agent.callback()(_keep_to_oneself)
    for group in _GROUPS:
        agent.add_typer(group)
    app.add_typer(agent)
    app.add_typer(compare.compare)


def _keep_to_oneself() -> None:
    """Run a silo's agent: enrol once, check, then leave it running."""
    close_umask()
