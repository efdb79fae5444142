"""Record what a command draws again and again in a terminal, and make a picture of some moments of it."""

from __future__ import annotations

import io
import os
import pty
import re
import struct
import subprocess
import termios
import threading
from collections.abc import Callable, Mapping, Sequence
from fcntl import ioctl
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from examples.screenshots.federations import ScreenshotsFailed

COLUMNS = 110
_ROWS = 40
_BACK_TO_THE_TOP = re.compile(r"\r\x1b\[2K(?:\x1b\[1A\x1b\[2K)*")
"""What rich writes before it draws again in the same place."""

_DARK = TerminalTheme(
    (20, 24, 30),
    (230, 233, 238),
    [
        (90, 98, 110),
        (229, 110, 110),
        (120, 190, 130),
        (220, 190, 110),
        (110, 160, 230),
        (190, 140, 220),
        (110, 195, 205),
        (230, 233, 238),
    ],
)
_SVG = """<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font: {char_height}px/{line_height}px "Liberation Mono", Menlo, Consolas, monospace }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
<rect width="{width}" height="{height}" rx="8" fill="#14181e"/>
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
"""Rich's own format without the window around it, and without fonts from a server."""


class Recording:
    """A command in a pseudo-terminal; what it draws is recorded until it ends, or the block does."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command = command
        self._environment = {**environment, "TERM": "xterm-256color"}
        self._output = bytearray()

    def __enter__(self) -> Self:
        self._screen, terminal = pty.openpty()
        ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, COLUMNS, 0, 0))
        try:
            self._process = subprocess.Popen(
                self._command, stdin=terminal, stdout=terminal, stderr=terminal, env=self._environment
            )
        finally:
            os.close(terminal)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        os.close(self._screen)

    def has_ended(self) -> bool:
        """Whether the command has ended and all of its output is recorded."""
        return not self._reader.is_alive()

    def drawings(self) -> list[str]:
        """Return what was drawn so far, with its colours; a drawing replaces the one before it."""
        return drawings(bytes(self._output).decode("utf-8", "ignore"))

    def _read(self) -> None:
        while True:
            try:
                content = os.read(self._screen, 65536)
            except OSError:  # no process has the terminal any more
                return
            if not content:
                return
            self._output += content


def drawings(output: str) -> list[str]:
    """Split a terminal's output into what was drawn in one place."""
    parts = _BACK_TO_THE_TOP.split(output.replace("\r\n", "\n"))
    return [part.strip("\n") for part in parts if Text.from_ansi(part).plain.strip()]


def moments(drawn: Sequence[str], conditions: Sequence[Callable[[str], bool]]) -> list[str]:
    """Return, in their order, the first drawing of each condition after the moment before it.

    Raises:
        ScreenshotsFailed: there is none.
    """
    remaining, chosen = iter(drawn), []
    for number, condition in enumerate(conditions, start=1):
        moment = next((text for text in remaining if condition(Text.from_ansi(text).plain)), None)
        if moment is None:
            raise ScreenshotsFailed(f"the terminal has not shown moment {number}; run it again")
        chosen.append(moment)
    return chosen


def svg_of(command: str, chosen: Sequence[str]) -> str:
    """Return a picture of a command and of some moments of its output, below each other."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(f"$ {command}", highlight=False, markup=False)
    for drawing in chosen:
        console.print(Text.from_ansi(drawing))
        console.print()
    return console.export_svg(theme=_DARK, code_format=_SVG, unique_id="terminal")
