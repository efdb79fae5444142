"""Which characters a name may have that reaches a terminal or a page, and how the others are shown.

Names from before this rule are stored, and in plans that are signed: they still load, and are escaped.
"""

from __future__ import annotations

import unicodedata
from typing import Annotated

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from schemas.messages.base import Name

_UNPRINTABLE = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
"""Controls, formats (bidi among them), surrogates, private use, separators of lines and paragraphs."""


def is_printable(text: str) -> bool:
    """Whether every character of a text is shown, and none changes how others are shown."""
    return not any(unicodedata.category(character) in _UNPRINTABLE for character in text)


def printable(text: str) -> str:
    """Write characters that a terminal acts on as escapes, `\\u202e`; ends of lines stay."""
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
"""A name that a person gives now."""
