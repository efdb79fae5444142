"""The agent's commands, run in this process."""

from __future__ import annotations

from typing import Any

import typer
from typer.testing import CliRunner, Result

from client_agent.cli import commands


def tessera(*arguments: object, **options: Any) -> Result:
    """Run `tessera agent ...`; the options are those of `CliRunner.invoke`."""
    app = typer.Typer()
    commands(app)
    return CliRunner().invoke(app, ["agent", *map(str, arguments)], **options)
