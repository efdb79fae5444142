"""Make ids: opaque to everyone outside, and sorted by creation, so that a page can start after one."""

from __future__ import annotations

import secrets
import time


def new_id(prefix: str) -> str:
    """Make an id: a prefix that tells people what it names, milliseconds since 1970, 48 random bits."""
    return f"{prefix}_{time.time_ns() // 1_000_000:012x}{secrets.token_hex(6)}"
