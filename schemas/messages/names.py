"""Printable names: names with control or format characters are rejected, and escaped when displayed.

Names stored before this rule, some in signed plans, still load.
"""

from __future__ import annotations

import unicodedata
from typing import Annotated

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from schemas.messages.base import Name

_UNPRINTABLE = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
"""Unicode categories: control, format (with bidi), surrogate, private use, line and paragraph separators."""


def is_printable(text: str) -> bool:
    """Whether a text has only visible characters, and none that changes the display of its neighbours."""
    return not any(unicodedata.category(character) in _UNPRINTABLE for character in text)


def printable(text: str) -> str:
    r"""Return a text with control characters escaped, such as `\\u202e`; line feeds stay."""
    if is_printable(text):
        return text
    return "".join(
        character
        if character == "\n" or unicodedata.category(character) not in _UNPRINTABLE
        else character.encode("unicode_escape", "surrogatepass").decode("ascii")
        for character in text
    )


def _checked(name: str) -> str:
    if not is_printable(name):
        raise PydanticCustomError(
            "wrong", "control, format and private-use characters, and line separators, are not allowed"
        )
    return name


NewName = Annotated[Name, AfterValidator(_checked)]
"""A new name: printable characters only."""
