"""The `tessera` command: command groups come from the entry points `tessera.commands` and load lazily."""

from __future__ import annotations

import re
from importlib.metadata import entry_points, requires, version
from typing import Annotated

import typer

_DISTRIBUTION = "tessera-fl"


def application() -> typer.Typer:
    """Build the command from all installed entry points."""
    app = typer.Typer(
        name="tessera",
        help="Personalised federated fine-tuning of language models, across organisations and architectures.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(_root)
    for entry in sorted(entry_points(group="tessera.commands"), key=lambda entry: entry.name, reverse=True):
        entry.load()(app)
    return app


def main() -> None:
    try:
        application()()
    except ModuleNotFoundError as error:
        extra = _extra_with((error.name or "").partition(".")[0])
        if extra is None:
            raise
        typer.echo(
            f"tessera: this needs {error.name}, which is not installed: in a clone of Tessera, run "
            f"pip install '.[{extra}]'",
            err=True,
        )
        raise SystemExit(1) from None


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"tessera {version(_DISTRIBUTION)}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Keep `tessera` a command group even with a single command installed."""


def _extra_with(module: str) -> str | None:
    """Return the extra of this distribution that installs a module, or None."""
    for requirement in requires(_DISTRIBUTION) or []:
        name = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0].replace("-", "_").lower()
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", requirement)
        if extra and name == module.lower():
            return extra.group(1)
    return None
