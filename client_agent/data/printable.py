"""Text of data as a terminal may show it: control characters as escapes, and what counts as blank."""

from __future__ import annotations

import unicodedata

_SHOWN_AS_THEY_ARE = frozenset("\n\t")


def printable(text: str) -> str:
    """Return a text with control and formatting characters as escapes, except line breaks and tabs.

    A terminal obeys them: they may clear the screen, colour what follows or reverse its direction.
    """
    if text.isprintable():
        return text
    return "".join(_escaped(c) if _is_hidden(c) and c not in _SHOWN_AS_THEY_ARE else c for c in text)


def is_blank(text: str) -> bool:
    """Whether a text has nothing to read: white space and invisible characters alone."""
    return all(character.isspace() or _is_hidden(character) for character in text)


def _is_hidden(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
