"""Make bodies that are almost right, for a client that has joined round 1."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

from tests.served import Served, Silo, slug
from tests.taking_part import (
    update_body,
    values,
)

Rows = Callable[[str, str], list[tuple[Any, ...]]]
LIMIT = 256 * 1024


@dataclass
class Target:
    """A client that has joined round 1, and what it was told to start from."""

    served: Served
    silo: Silo
    base: str
    newcomer: Silo

    def good(self, **changes: Any) -> bytes:
        return update_body(self.silo, 1, self.base, values(1.0), **changes)

    def raw(self, change: Callable[[dict[str, Any]], object], data: bytes | None = None) -> bytes:
        """Take a good body, change its header as a dictionary, put it together again."""
        good = self.good()
        length = int.from_bytes(good[:8], "little")
        header = json.loads(good[8 : 8 + length])
        change(header)
        text = json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + (good[8 + length :] if data is None else data)

    def manifest(self, **changes: Any) -> bytes:
        """Take a good body and change members of its manifest; ... removes one."""

        def change(header: dict[str, Any]) -> None:
            manifest = json.loads(header["__metadata__"]["tessera"]) | changes
            said = {name: value for name, value in manifest.items() if value is not ...}
            header["__metadata__"]["tessera"] = json.dumps(said)

        return self.raw(change)


def refused(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, slug(answer)
