"""The text of an enrolment token: `tsr1_<id>_<secret>_<thumbprint of the server's key>_<checksum>`. Pure.

The checksum finds a token that was not copied whole before anything is sent.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from zlib import crc32

_FORM = re.compile(r"(tsr1_([0-9a-f]{24})_([A-Za-z0-9_-]{43})_([A-Za-z0-9_-]{43}))_([0-9a-f]{8})")


class TokenMalformed(ValueError):
    """Not the text of an enrolment token, or not all of it."""


@dataclass(frozen=True, slots=True)
class EnrolmentTokenText:
    """What a token says: which one it is, its secret, and which server it is for."""

    id: str
    secret: str
    server: str

    def __str__(self) -> str:
        said = f"tsr1_{self.id}_{self.secret}_{self.server}"
        return f"{said}_{crc32(said.encode()):08x}"


def read(text: str) -> EnrolmentTokenText:
    """Read a token.

    Raises:
        TokenMalformed: it has another form, or its checksum is wrong.
    """
    found = _FORM.fullmatch(text)
    if found is None or crc32(found.group(1).encode()) != int(found.group(5), 16):
        raise TokenMalformed("not an enrolment token, or not all of it")
    return EnrolmentTokenText(found.group(2), found.group(3), found.group(4))
