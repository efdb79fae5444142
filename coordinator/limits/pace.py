"""How slow a peer may be. Pure: seconds and bytes in, seconds out."""

from __future__ import annotations

HEAD_SECONDS = 10.0
"""A request's line and header fields arrive within this time of their first byte, or of the connection."""

IDLE_SECONDS = 10.0
"""A body never pauses longer."""

GRACE_SECONDS = 30.0
"""What a body may take whatever its size."""

ANSWER_BYTES_PER_SECOND = 50_000
"""The pace at which an answer is taken on the whole: slower lines get it in several requests."""

REFUSED_BODY = 2**28
"""As much of a body is waited for whose request was answered before it had come, whatever it announces."""


def body_seconds(size: int, bytes_per_second: int) -> float:
    """Say how long a body of `size` bytes may take to arrive."""
    return GRACE_SECONDS + size / bytes_per_second
