"""Write `unicode.txt` from files of the Unicode Character Database: `python -m schemas.names FOLDER`.

FOLDER has UnicodeData.txt, Scripts.txt, ScriptExtensions.txt, PropertyValueAliases.txt and
DerivedCoreProperties.txt of https://www.unicode.org/Public/17.0.0/ucd/, and confusables.txt of
https://www.unicode.org/Public/17.0.0/security/.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

TABLE = Path(__file__).with_name("unicode.txt")
_CATEGORIES = frozenset({"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Nd", "Nl", "No"})
_HEADER = """\
# Letters, marks and numbers by script, and the characters that look like others. Written by
# `python -m schemas.names`; do not edit.
#
# Derived from the Unicode Character Database 17.0.0 (UnicodeData.txt, Scripts.txt, ScriptExtensions.txt,
# DerivedCoreProperties.txt) and from confusables.txt 17.0.0 of Unicode Technical Standard 39.
# Copyright 1991-2025 Unicode, Inc. Unicode License V3: https://www.unicode.org/license.txt
#
# s FIRST-LAST SCRIPTS: the scripts in which these characters are used, "Common" = all
# c CHARACTER PROTOTYPE: the characters that it looks like
"""


def table(folder: Path) -> str:
    """Return the table's text; characters that NFKC replaces are left out, as are invisible ones."""
    scripts = _scripts(folder)
    prototypes = {
        source: target
        for source, target, *_ in _rows(folder / "confusables.txt")
        if int(source, 16) in scripts and " " not in source
    }
    lines = [_HEADER.rstrip("\n")]
    numbers = sorted(scripts)
    # Consecutive characters have the same difference from their position.
    for (_, names), group in groupby(
        enumerate(numbers), key=lambda pair: (pair[1] - pair[0], scripts[pair[1]])
    ):
        run = [number for _, number in group]
        span = f"{run[0]:X}" if len(run) == 1 else f"{run[0]:X}-{run[-1]:X}"
        lines.append(f"s {span} {names}")
    lines += [f"c {source} {target}" for source, target in sorted(prototypes.items(), key=_number)]
    return "\n".join(lines) + "\n"


def _scripts(folder: Path) -> dict[int, str]:
    """Return the scripts of every letter, mark and number that NFKC leaves as it is."""
    short = {row[2]: row[1] for row in _rows(folder / "PropertyValueAliases.txt") if row[0] == "sc"}
    scripts = {number: short[row[1]] for row in _rows(folder / "Scripts.txt") for number in _span(row[0])}
    for row in _rows(folder / "ScriptExtensions.txt"):
        scripts |= dict.fromkeys(_span(row[0]), row[1])
    visible = _characters(folder / "UnicodeData.txt") - {
        number
        for row in _rows(folder / "DerivedCoreProperties.txt")
        if row[1] == "Default_Ignorable_Code_Point"
        for number in _span(row[0])
    }
    long = {code: name for name, code in short.items()}
    return {
        number: "Common"
        if scripts[number] in ("Zyyy", "Zinh")
        else " ".join(long[code] for code in scripts[number].split())
        for number in visible
        if number in scripts
    }


def _characters(file: Path) -> set[int]:
    result: set[int] = set()
    first = 0
    for row in _rows(file):
        number, name, category, decomposition = int(row[0], 16), row[1], row[2], row[5]
        if name.endswith("First>"):
            first = number
        elif category in _CATEGORIES and not decomposition.startswith("<"):
            result |= set(range(first, number + 1)) if name.endswith("Last>") else {number}
    return result


def _rows(file: Path) -> Iterator[list[str]]:
    for line in file.read_text("utf-8-sig").splitlines():
        fields = [field.strip() for field in line.partition("#")[0].split(";")]
        if len(fields) > 1:
            yield fields


def _span(text: str) -> range:
    first, _, last = text.partition("..")
    return range(int(first, 16), int(last or first, 16) + 1)


def _number(pair: tuple[str, str]) -> int:
    return int(pair[0], 16)


if __name__ == "__main__":
    TABLE.write_text(table(Path(sys.argv[1])), "utf-8")
