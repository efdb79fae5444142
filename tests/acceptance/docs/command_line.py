"""Existence of what the commands on pages name: commands, options, targets, services, extras and files."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import typer
import yaml

from schemas.command import application
from tests.acceptance.docs.blocks import ROOT, SHELL, Block

_END = ("|", "||", "&&", ";", "&", ">", "<", ">>", "2>", "(", ")")
_INLINE = re.compile(r"(?<!`)`(?:\$ )?((?:tessera|make) [^`]+)`")
_FILE = re.compile(r"(?:benchmarks|deploy|examples|tests)/[\w./-]+")
_COMPOSE = ("up", "down", "exec", "stop", "cp", "ps", "logs", "config")


@cache
def tessera() -> Any:
    """Return the whole command, as installed: a group of click, which typer brings itself."""
    return typer.main.get_command(application())


def is_possible(block: Block) -> bool:
    """Whether the command line has all that the block needs, such as `agent export --for`."""
    return not [wrong for text in block.arguments("needs") for wrong in mistakes(f"tessera {text}")]


def mistakes(script: str) -> Iterator[str]:
    """Yield what a script names that does not exist."""
    for words in _simple_commands(script):
        if words[0] == "tessera":
            yield from _in_tessera(words[1:])
        elif words[0] == "make":
            targets = [word for word in words[1:] if "=" not in word]
            yield from (f"make {word}: no such target" for word in targets if word not in _targets())
        elif words[:2] == ["docker", "compose"]:
            yield from _in_compose(words[2:])
        elif words[:2] == ["pip", "install"]:
            yield from _in_pip(words[2:])
        files = (word for word in words if _FILE.fullmatch(word))
        yield from (f"{file}: no such file" for file in files if not (ROOT / file).exists())


def syntax_error(script: str) -> str:
    """Return what bash says about a script that it cannot parse; else nothing."""
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    return done.stderr


def scripts(page: Path, page_blocks: list[Block]) -> Iterator[str]:
    """Yield all commands of a page: of its blocks, and inline."""
    for block in page_blocks:
        if block.language in SHELL and is_possible(block):
            yield from (command.text for command in block.commands)
    prose = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    yield from (match[1].replace("\n", " ").replace("...", "") for match in _INLINE.finditer(prose))


def _simple_commands(script: str) -> Iterator[list[str]]:
    """Yield the words of each simple command, wherever in the script it begins."""
    script = re.sub(r"<<'?EOF'?\n.*?^EOF$", "", script, flags=re.MULTILINE | re.DOTALL)
    for line in re.split(r"\n|\$\(", script):
        try:
            lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
            lexer.whitespace_split = True
            words = list(lexer)
        except ValueError:  # the rest of a quoted text over several lines
            words = line.split()
        current: list[str] = []
        for word in [*words, ";"]:
            if word in _END:
                if current:
                    yield current
                current = []
            elif current or "=" not in word:
                current.append(word)


def _in_tessera(words: list[str]) -> Iterator[str]:
    command, path = tessera(), "tessera"
    arguments = list(words)
    while (children := getattr(command, "commands", None)) and arguments and not arguments[0].startswith("-"):
        child = children.get(arguments[0])
        if child is None:
            yield f"{path} {arguments[0]}: no such command"
            return
        command, path = child, f"{path} {arguments.pop(0)}"
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    yield from (
        f"{path} {word}: no such option"
        for word in arguments
        if word.startswith("--") and word.partition("=")[0] not in {*options, "--help"}
    )


@cache
def _targets() -> frozenset[str]:
    return frozenset(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


def _in_pip(words: list[str]) -> Iterator[str]:
    for match in filter(None, (re.fullmatch(r"\.\[(.+)\]", word) for word in words)):
        yield from (f"pip install [{e}]: no such extra" for e in match[1].split(",") if e not in _extras())


@cache
def _extras() -> frozenset[str]:
    return frozenset(
        tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    )


@cache
def _services() -> frozenset[str]:
    return frozenset(yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))["services"])


def _in_compose(words: list[str]) -> Iterator[str]:
    """Yield mistakes of `docker compose`: its command, services, scaled services and profiles."""
    text = " ".join(words)
    text = re.sub(r"^--profile agents ", "", text)
    while file := re.match(r"-f (\S+) ", text):
        if not (ROOT / file[1]).is_file():
            yield f"docker compose -f {file[1]}: no such file"
        text = text[file.end() :]
    verb = text.partition(" ")[0]
    if verb not in _COMPOSE:
        yield f"docker compose {verb}: no such command"
    named = {
        "stop": r"stop (\w+)",
        "exec": r"exec (?:-T )?(\w+)",
        "cp": r"cp (\w+):",
        "up": r"--scale (\w+)=",
    }.get(verb)
    for service in re.findall(named, text) if named else ():
        if service not in _services():
            yield f"docker compose {verb} {service}: no such service"
