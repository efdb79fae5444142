"""Faults that tests raise."""

from __future__ import annotations


class Killed(BaseException):
    """Ends a task as the end of its process would: no handler of exceptions sees it."""
