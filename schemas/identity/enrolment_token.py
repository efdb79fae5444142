"""The enrolment token as text: `tsr1_<id>_<secret>_<thumbprint of the server's key>_<checksum>`. Pure.

The checksum detects an incomplete copy before anything is sent.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from zlib import crc32

_FORM = re.compile(r"(tsr1_([0-9a-f]{24})_([A-Za-z0-9_-]{43})_([A-Za-z0-9_-]{43}))_([0-9a-f]{8})")


class TokenMalformed(ValueError):
    """The text is not a complete enrolment token."""


@dataclass(frozen=True, slots=True)
class EnrolmentTokenText:
    """The parts of a token: its id, its secret, and the thumbprint of its server."""

    id: str
    secret: str
    server: str

    def __str__(self) -> str:
        text = f"tsr1_{self.id}_{self.secret}_{self.server}"
        return f"{text}_{crc32(text.encode()):08x}"


def read(text: str) -> EnrolmentTokenText:
    """Parse a token.

    Raises:
        TokenMalformed: the form or the checksum is wrong.
    """
    match = _FORM.fullmatch(text)
    # The checksum finds a copy that is not complete before anything is sent.
    if match is None or crc32(match.group(1).encode()) != int(match.group(5), 16):
        raise TokenMalformed("not an enrolment token, or not all of it")
    return EnrolmentTokenText(match.group(2), match.group(3), match.group(4))
