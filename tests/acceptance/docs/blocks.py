"""Fenced blocks of a page, and the test instructions before them as HTML comments.

`python -m tests.acceptance.docs.blocks` counts the blocks of all pages.
An instruction applies to the next block: `<!-- test: INSTRUCTION -->`.

    skip REASON; FILE      parse the block, and do not run it; FILE tests what it shows
    needs COMMAND --OPTION run it only where the command line has the options
    part FILE              compare the block with this file of the repository
    background             start it, and go on; the shown lines are awaited
    instead NAME=VALUE     set a variable instead of running the block; paths are those of the repository
    set NAME=VALUE REASON  set a variable for the block
    output any REASON      run it, and do not compare its output
    status N               the exit status of its last command
    with STATE             prepare a state of tests/acceptance/docs/states.py
    stop coordinator       stop it before the block
    package NAME           put the page's package where entry points are found, instead of running the block
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGES = sorted(path for folder in ("tutorials", "how-to") for path in (ROOT / "docs" / folder).glob("*.md"))
SHELL = ("bash", "console")
VERBS = (
    "skip",
    "needs",
    "part",
    "background",
    "instead",
    "set",
    "output",
    "status",
    "with",
    "stop",
    "package",
)

_COMMENT = re.compile(r"<!-- test: (.+?) -->")
_FENCE = re.compile(r'```(\w*)(?: title="([^"]+)")?')


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a block, and the lines that the page shows as its output."""

    text: str
    output: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block."""

    line: int
    language: str
    title: str | None
    body: str
    instructions: tuple[tuple[str, str], ...]

    def instruction(self, verb: str) -> str | None:
        """Return the argument of the first instruction with this verb, or None."""
        return next((argument for name, argument in self.instructions if name == verb), None)

    def arguments(self, verb: str) -> list[str]:
        return [argument for name, argument in self.instructions if name == verb]

    @property
    def commands(self) -> list[Command]:
        """Return the commands: those behind `$ ` in a console, a whole block of bash as one."""
        if self.language == "bash":
            return [Command(self.body, ())]
        commands: list[Command] = []
        is_command = False
        for line in self.body.splitlines():
            if line.startswith("$ "):
                commands.append(Command(line[2:], ()))
            elif is_command and line.startswith("> "):
                commands[-1] = Command(f"{commands[-1].text}\n{line[2:]}", ())
                continue
            elif commands:
                commands[-1] = Command(commands[-1].text, (*commands[-1].output, line))
            else:
                raise ValueError(f"line {self.line}: a console begins with `$ `")
            is_command = line.startswith("$ ")
        return commands


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page in order."""
    result: list[Block] = []
    waiting: list[tuple[str, str]] = []
    opened: tuple[int, str, str | None] | None = None
    body: list[str] = []
    for number, line in enumerate(page.read_text("utf-8").splitlines(), 1):
        if opened is not None:
            if line == "```":
                text = "\n".join(body) + "\n"
                result.append(Block(*opened, text, tuple(waiting)))
                opened, waiting = None, []
            else:
                body.append(line)
            continue
        comment, fence = _COMMENT.fullmatch(line), _FENCE.fullmatch(line)
        if comment is not None:
            verb, _, argument = comment[1].partition(" ")
            waiting.append((verb, argument))
        elif fence is not None:
            opened, body = (number, fence[1], fence[2]), []
    return result


def treatment(block: Block) -> str:
    """Return what the tests do with a block: run it, write it to a file, compare, parse or skip it."""
    if (reason := block.instruction("skip")) is not None:
        return f"skipped: {reason.partition(';')[0]}"
    if block.title is not None:
        return "written to its file"
    if block.instruction("instead") is not None:
        return "replaced by a variable"
    if block.instruction("part") is not None:
        return "compared with a file"
    return "run" if block.language in SHELL else "parsed"


if __name__ == "__main__":
    treatments = Counter(treatment(block) for page in PAGES for block in blocks(page))
    for name, number in treatments.most_common():
        print(f"{number:4} {name}")
    print(f"{treatments.total():4} blocks of {len(PAGES)} pages")
