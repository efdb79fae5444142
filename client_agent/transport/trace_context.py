"""Carry the current trace of OpenTelemetry to the coordinator, where its API is installed."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import httpx


def carry_trace(request: httpx.Request) -> None:
    """Add `traceparent` to a request made within a span; signatures do not cover it."""
    if _is_installed():
        from opentelemetry.propagate import inject

        inject(request.headers)


@cache
def _is_installed() -> bool:
    return find_spec("opentelemetry") is not None and find_spec("opentelemetry.propagate") is not None
