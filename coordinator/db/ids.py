"""Generate ids: opaque to clients, and sorted by creation, so that pages can start after one."""

from __future__ import annotations

import secrets
import time


def new_id(prefix: str) -> str:
    """Return a new id: a readable prefix, milliseconds since 1970, 48 random bits."""
    return f"{prefix}_{time.time_ns() // 1_000_000:012x}{secrets.token_hex(6)}"
