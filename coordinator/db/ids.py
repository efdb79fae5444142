"""Generate ids: opaque to clients, and sorted by creation, so that pages can start after one."""

from __future__ import annotations

import secrets
import time


def new_id(prefix: str) -> str:
    """Return a new id: a readable prefix, milliseconds since 1970, microseconds of them, 36 random bits."""
    milliseconds, nanoseconds = divmod(time.time_ns(), 1_000_000)
    return f"{prefix}_{milliseconds:012x}{nanoseconds // 1000:03x}{secrets.token_hex(5)[:9]}"
