"""The page of the command line: every command and option of `tessera`, from the typer application."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from docs.generate.markdown import anchor, block, code, page_of, prose, sentence, table
from schemas.command import application

_INTRODUCTION = """\
`tessera` is the command of coordinators, operators and silos, and of comparisons of methods. `tessera
COMMAND --help` prints the texts of this page.

Commands that call a coordinator use only its [HTTP API](http-api.md). A command exits with status 0 if it
succeeds, with 1 after an error, whose message says what to do next, with 2 if an option is wrong, and with
130 if it is interrupted ([errors of the agent](errors.md#agent))."""
_BOOLEAN = "<bool>"


@dataclass(frozen=True, slots=True)
class Command:
    """One command: its words, and typer's description of it."""

    path: tuple[str, ...]
    described: TyperCommand

    @property
    def name(self) -> str:
        return " ".join(self.path)

    @property
    def heading(self) -> str:
        """Return the heading of its group: the first words of the command, or its panel in the help."""
        if len(self.path) > 2:
            return " ".join(self.path[:-1])
        panel = getattr(self.described, "rich_help_panel", None)
        return f"{panel} commands" if isinstance(panel, str) else "Commands that run both sides"


def page() -> str:
    groups: dict[str, list[Command]] = {}
    for command in commands():
        groups.setdefault(command.heading, []).append(command)
    sections = [
        part
        for heading, members in groups.items()
        for part in (f"## {heading}", *(_section(command) for command in members))
    ]
    return page_of("Command line", "the commands' own options", _INTRODUCTION, _overview(groups), *sections)


def commands() -> list[Command]:
    """Return all commands of `tessera`, without their groups."""
    root = typer.main.get_command(application())
    if not isinstance(root, TyperGroup):
        raise TypeError("tessera is not a group of commands; install the entry points of tessera-fl")
    return list(_flattened(root, ("tessera",)))


def _flattened(group: TyperGroup, path: tuple[str, ...]) -> Iterator[Command]:
    for name, described in group.commands.items():
        if isinstance(described, TyperGroup):
            yield from _flattened(described, (*path, name))
        elif isinstance(described, TyperCommand) and not described.hidden:
            yield Command((*path, name), described)


def _overview(groups: dict[str, list[Command]]) -> str:
    rows = [
        (f"[`{command.name}`](#{anchor(command.name)})", _summary(command))
        for members in groups.values()
        for command in members
    ]
    return table(("command", "what it does"), rows)


def _summary(command: Command) -> str:
    return sentence(prose(command.described.help).partition("\n\n")[0])


def _section(command: Command) -> str:
    parameters = command.described.params
    with command.described.make_context(command.name, [], resilient_parsing=True) as context:
        usage = " ".join([command.name, *command.described.collect_usage_pieces(context)])
        arguments = [_argument(parameter) for parameter in parameters if isinstance(parameter, TyperArgument)]
        options = [
            _option(parameter, parameter.display_type_rich(context) or "")
            for parameter in parameters
            if isinstance(parameter, TyperOption) and not parameter.hidden
        ]
    parts = (
        f"### {command.name}",
        prose(command.described.help),
        block("text", usage),
        table(("argument", "meaning"), arguments),
        table(("option", "default", "meaning"), options),
    )
    return "\n\n".join(part for part in parts if part)


def _argument(argument: TyperArgument) -> tuple[str, str]:
    name = argument.metavar or argument.name or ""
    return code(name), sentence(argument.help or "")


def _option(option: TyperOption, value: str) -> tuple[str, str, str]:
    flags = ", ".join(code(flag) for flag in (*option.opts, *option.secondary_opts))
    placeholder = "" if value == _BOOLEAN or option.is_flag else f" {code(value)}"
    variables = [option.envvar] if isinstance(option.envvar, str) else option.envvar or []
    environment = f"Environment: {', '.join(map(code, variables))}." if variables else ""
    repeatable = "May be repeated." if option.multiple and "repeat" not in (option.help or "") else ""
    bounds = _bounds(option)
    meaning = " ".join(filter(None, (sentence(option.help or ""), bounds, repeatable, environment)))
    return flags + placeholder, _default(option), meaning


def _bounds(option: TyperOption) -> str:
    match option.min, option.max:
        case None, None:
            return ""
        case least, None:
            return f"At least {least:g}."
        case None, most:
            return f"At most {most:g}."
        case least, most:
            return f"From {least:g} to {most:g}." if most < 2**53 else f"At least {least:g}."


def _default(option: TyperOption) -> str:
    if option.required:
        return "required"
    if isinstance(option.show_default, str):
        return option.show_default
    default = option.default
    if default is None or default == "" or default is False or callable(default):
        return ""
    return code(getattr(default, "value", default))
