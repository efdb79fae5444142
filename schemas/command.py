"""The `tessera` command: command groups come from the entry points `tessera.commands` and load lazily."""

from __future__ import annotations

import inspect
import re
import sys
from importlib.metadata import entry_points, requires, version
from typing import Annotated, NoReturn

import typer
from typer.core import TyperGroup

_DISTRIBUTION = "tessera-fl"
_INTERRUPTED = 130  # 128 + SIGINT, as in shells


Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]


def application(first: str = "") -> typer.Typer:
    """Build the command from all installed entry points, or only from the one with the name `first`."""
    app = typer.Typer(
        name="tessera",
        help="Personalised federated fine-tuning of language models, across organisations and architectures.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        cls=_OrderedGroup,
    )
    app.callback()(_root)
    entries = entry_points(group="tessera.commands")
    # Loading only the group that is called keeps the command fast; the version needs none.
    if first in entries.names or first == "--version":
        entries = entries.select(name=first)
    for entry in sorted(entries, key=lambda entry: entry.name, reverse=True):
        entry.load()(app)
    _unwrap_help(app)
    return app


# The panel that begins with `serve`; typer forgets the order between commands and groups.
_COMMANDS_FIRST = "Coordinator"


class _OrderedGroup(TyperGroup):
    """A group whose panels show groups before single commands, except in one panel."""

    def list_commands(self, ctx: object) -> list[str]:
        panels = {
            name: getattr(command, "rich_help_panel", None) or None for name, command in self.commands.items()
        }
        order = list(dict.fromkeys(panels.values()))
        return sorted(
            self.commands,
            key=lambda name: (
                order.index(panels[name]),
                isinstance(self.commands[name], TyperGroup) == (panels[name] == _COMMANDS_FIRST),
            ),
        )


def unwrapped(docstring: str) -> str:
    """Return a text with every paragraph on one line, so that a terminal wraps it at its own width.

    Indented lines and items of lists stay lines of their own.
    """
    text = inspect.cleandoc(docstring)
    return re.sub(r"(?<=\S)\n(?![\n ]|[-*] )", " ", text)


def _unwrap_help(app: typer.Typer) -> None:
    """Set the help of all commands, which rich would break where the docstring's lines end."""
    for command in app.registered_commands:
        command.help = unwrapped(command.help or getattr(command.callback, "__doc__", None) or "")
    for group in app.registered_groups:
        if group.typer_instance is not None:
            _unwrap_help(group.typer_instance)


def fail(reason: object) -> NoReturn:
    """Print an error to standard error, with the prefix of all commands, and exit with status 1."""
    typer.echo(f"{typer.style('error: ', fg='red')}{reason}", err=True)
    raise typer.Exit(1)


def confirm(consequence: str, *, yes: bool) -> None:
    """Ask whether to do what cannot be undone; `yes` is the option --yes of a command.

    Without a terminal the command ends with status 1 and names the option.
    """
    if yes:
        return
    # Without a terminal nobody can answer, and a script must not go on by accident.
    if not sys.stdin.isatty():
        fail(f"nothing was changed; add --yes to the command to confirm: {consequence}")
    if not typer.confirm(f"{consequence}. Continue?", err=True):
        typer.echo("Nothing was changed.", err=True)
        raise typer.Exit(1)


def main() -> None:
    try:
        application(*sys.argv[1:2])()
    except KeyboardInterrupt:  # while the commands are imported
        typer.echo("interrupted", err=True)
        raise SystemExit(_INTERRUPTED) from None
    except ModuleNotFoundError as error:
        # A missing module of an extra is a matter of installation, not a fault of the program.
        extra = _extra_with((error.name or "").partition(".")[0])
        if extra is None:
            raise
        typer.echo(
            f"error: this command needs {error.name}, which is not installed; in a clone of Tessera, run "
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
