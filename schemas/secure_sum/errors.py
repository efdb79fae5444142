"""Reasons for which a side of the secure sum stops or rejects a message."""

from __future__ import annotations


class SecureSumError(ValueError):
    """A message or a set of messages violates the protocol; the text says which rule."""


class TermsRefused(SecureSumError):
    """A member does not accept the terms of a session."""


class MessageRefused(SecureSumError):
    """A message of a member is not acceptable, for a `reason`; `position` is its place in the terms."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"member {position}: {reason}")
        self.position = position
        self.reason = reason


class SessionAborted(SecureSumError):
    """The session cannot continue; it revealed nothing that the next session could add to."""


class SumOutOfRange(SessionAborted):
    """A coordinate of the sum exceeds what honest members can send: a member sent a wrong input."""


class SharesInconsistent(SessionAborted):
    """No tried set of shares gives the secret that its owner committed to."""
