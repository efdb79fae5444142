"""The operator's commands, run in this process against a coordinator of the tests."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import typer
from click.testing import Result
from typer.testing import CliRunner

from coordinator.cli import commands
from tests.scene.coordinator import ADMIN_TOKEN, Served


@dataclass
class Operator:
    """The command line of an admin, `columns` wide, pointed at a coordinator."""

    served: Served
    columns: int = 250

    def __call__(self, *arguments: str, fails: bool = False, token: str = ADMIN_TOKEN) -> str:
        done = self._run(*arguments, token=token)
        assert done.exit_code == (1 if fails else 0), done.output
        return done.stderr if fails else done.stdout

    def warnings(self, *arguments: str) -> str:
        """Run a command that succeeds; return what it prints on standard error."""
        done = self._run(*arguments, token=ADMIN_TOKEN)
        assert done.exit_code == 0, done.output
        return done.stderr

    def interrupted(self, *arguments: str) -> str:
        """Run a command that is interrupted; return what it prints on standard error."""
        done = self._run(*arguments, token=ADMIN_TOKEN)
        assert done.exit_code == 130, done.output
        return done.stderr

    def _run(self, *arguments: str, token: str) -> Result:
        app = typer.Typer(pretty_exceptions_enable=False)
        commands(app)
        environment = {
            "TESSERA_URL": self.served.url,
            "TESSERA_TOKEN": token,
            "COLUMNS": str(self.columns),
            "TERM": "dumb",
        }
        return CliRunner().invoke(app, list(arguments), env=environment, catch_exceptions=False)

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json"))
