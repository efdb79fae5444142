"""Read `unicode.txt`: the scripts of characters, and the characters that they look like."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

COMMON = frozenset({"Common"})
# Scripts that one writing system uses together (UTS 39, section 5.1).
_WRITTEN_TOGETHER = {
    "Han": ("Japanese", "Korean", "Chinese"),
    "Hiragana": ("Japanese",),
    "Katakana": ("Japanese",),
    "Hangul": ("Korean",),
    "Bopomofo": ("Chinese",),
}


@dataclass(frozen=True, slots=True)
class UnicodeTable:
    """Spans of characters in order, their scripts, and prototypes of confusable characters.

    `prototypes` is in the form of `str.translate`.
    """

    firsts: list[int]
    lasts: list[int]
    scripts: list[frozenset[str]]
    prototypes: dict[int, str]

    def scripts_of(self, character: str) -> frozenset[str] | None:
        """Return the scripts of a letter, mark or number; None for any other character."""
        number = ord(character)
        place = bisect_right(self.firsts, number) - 1
        return self.scripts[place] if place >= 0 and number <= self.lasts[place] else None


@cache
def unicode_table() -> UnicodeTable:
    table = UnicodeTable([], [], [], {})
    for line in (files(__package__) / "unicode.txt").read_text("utf-8").splitlines():
        kind, _, content = line.partition(" ")
        if kind == "s":
            span, *names = content.split(" ")
            first, _, last = span.partition("-")
            table.firsts.append(int(first, 16))
            table.lasts.append(int(last or first, 16))
            table.scripts.append(_scripts(names))
        elif kind == "c":
            source, *prototype = content.split(" ")
            table.prototypes[int(source, 16)] = "".join(chr(int(number, 16)) for number in prototype)
    return table


def _scripts(names: list[str]) -> frozenset[str]:
    return frozenset(script for name in names for script in (name, *_WRITTEN_TOGETHER.get(name, ())))
