"""The commands `tessera agent ...`; each file of this folder is a group of commands."""

from __future__ import annotations

from collections.abc import Sequence

import typer
from typer.models import CommandInfo

from client_agent.cli import agent as cli_agent
from client_agent.cli import (
    alignment,
    check,
    data,
    export,
    generate,
    init,
    offline,
    pivot,
    revisions,
    sent,
    train,
)
from schemas.private_files import close_umask

_GROUPS = (
    cli_agent.agent,
    check.checking,
    sent.sending,
    offline.offline,
    generate.generating,
    export.exporting,
    revisions.revising,
    train.training,
    alignment.aligning,
    init.beginning,
    data.data,
    pivot.pivot,
)
_PANELS = {
    None: (
        "init",
        "data",
        "check",
        "enrol",
        "run",
        "status",
        "sent",
        "generate",
        "history",
        "export",
        "rollback",
        "train",
    ),
    "Without a network": ("sync", "work"),
    "Identity": ("rotate-key", "accept-restored"),
    "Alignment": ("align", "alignment-test", "write-anchors", "make-pivot-pack"),
}
"""The commands of `tessera agent --help`, in the order of their first use."""


def commands(app: typer.Typer) -> None:
    """Add the agent's commands to `tessera`."""
    agent = typer.Typer(
        name="agent",
        help="Run a silo's agent: enrol once, check, then keep it running.",
        no_args_is_help=True,
    )
    agent.callback()(_private_files)
    agent.registered_commands = _ordered([c for group in _GROUPS for c in group.registered_commands])
    app.add_typer(agent)


def _ordered(commands: Sequence[CommandInfo]) -> list[CommandInfo]:
    """Return commands by panel and in order; one that `_PANELS` does not name is the last without a panel."""
    places = {name: (panel, index) for panel, names in _PANELS.items() for index, name in enumerate(names)}
    panels = list(_PANELS)
    placed: list[tuple[int, int, CommandInfo]] = []
    for command in commands:
        name = str(command.name or getattr(command.callback, "__name__", ""))
        panel, index = places.get(name, (None, len(places)))
        if panel is not None:
            command.rich_help_panel = panel
        placed.append((panels.index(panel), index, command))
    return [command for _, _, command in sorted(placed, key=lambda entry: entry[:2])]


def _private_files() -> None:
    """Run a silo's agent: enrol once, check, then keep it running."""
    close_umask()
