"""Names in messages: new ones follow the rule of `schemas.names`, received ones are escaped for display."""

from __future__ import annotations

import unicodedata
from functools import partial
from typing import Annotated

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from schemas.messages.base import Name
from schemas.names.spelling import NameRefused, new_name

# Unicode categories: control, format (with bidi), surrogate, private use, line and paragraph separators.
_UNPRINTABLE = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})


def printable(text: str) -> str:
    r"""Return a text with control characters escaped, such as `\\u202e`; line feeds stay."""
    if not any(unicodedata.category(character) in _UNPRINTABLE for character in text):
        return text
    return "".join(
        character
        if character == "\n" or unicodedata.category(character) not in _UNPRINTABLE
        else character.encode("unicode_escape", "surrogatepass").decode("ascii")
        for character in text
    )


def _checked(text: str, *, also: str = "") -> str:
    try:
        return new_name(text, also=also)
    except NameRefused as error:
        raise PydanticCustomError("wrong", "{reason}", {"reason": str(error)}) from None


NewName = Annotated[Name, AfterValidator(_checked)]
"""A new name in its normal form: letters, digits, spaces, `-`, `_` and `.`, in one script."""

PersonName = Annotated[Name, AfterValidator(partial(_checked, also="@"))]
"""A person's name in its normal form, which may be a mail address."""
