"""Decide what a refusal or a silence means for a round: try again, go on without it, or ask a person."""

from __future__ import annotations

from typing import Final

from client_agent.errors import (
    AgentError,
    AnswerUnreadable,
    CoordinatorRefused,
    CoordinatorUnreachable,
    ManifestRefused,
    RequestTooSlow,
)
from client_agent.rounds.participant import Participant
from client_agent.storage.round_folder import RECEIPT, SCORES_SENT, RoundFolder

TROUBLE: Final = (CoordinatorRefused, CoordinatorUnreachable, AnswerUnreadable, RequestTooSlow)
RECEIPT_LOST: Final = "receipt-lost"

_NOT_JOINED, _NOT_FOUND = "not-joined", "not-found"
# What the coordinator says when we came too late; the local adapter goes on all the same.
_TOO_LATE: Final = frozenset({"round-closed", _NOT_JOINED, _NOT_FOUND})
# It does not like what was sent: the same bytes would be refused again and again.
_CONTENT_REFUSED: Final = frozenset({400, 409, 412, 413, 415, 422})
_TAKES_UPDATES: Final = frozenset({"open", "collecting"})


def given_up(who: Participant, folder: RoundFolder, file: str, trouble: AgentError) -> str | None:
    """Say why trying again would change nothing, None where it might; the local adapter goes on anyway.

    Args:
        folder: the round's.
        file: the result of the step that met with trouble.

    Raises:
        ManifestRefused: the coordinator has forgotten the round, or that this client joined it. Left alone,
            the round that it asks for next under this number would wait for us in vain.
    """
    if isinstance(trouble, CoordinatorRefused):
        if who.manifests.has_joined(folder.number) and _is_denied(who, folder.number, trouble):
            raise ManifestRefused(
                f"round {folder.number} was joined, as its manifest proves, and is said not to have been"
            ) from trouble
        refused = file in (RECEIPT, SCORES_SENT) and trouble.status in _CONTENT_REFUSED
        if refused or trouble.slug in _TOO_LATE:
            return trouble.slug
    return _what_became(who, folder.number) if file == RECEIPT else None


def _is_denied(who: Participant, number: int, refusal: CoordinatorRefused) -> bool:
    """Say whether a refusal comes from a coordinator set back to before we joined a round.

    Weights of long ago are not found either, where old rounds are thinned out; that we took part is.
    """
    if refusal.slug != _NOT_FOUND:
        return refusal.slug == _NOT_JOINED
    try:
        seen = who.api.round_view(who.federation, number)
        return all(one.client_id != who.client for one in seen.clients)
    except CoordinatorRefused as unknown:
        return unknown.slug == _NOT_FOUND
    except (CoordinatorUnreachable, AnswerUnreadable, RequestTooSlow):
        pass
    return False


def _what_became(who: Participant, number: int) -> str | None:
    """Ask what became of a round whose receipt does not come; None while it takes updates, or nobody knows.

    What stands in between may let none of ours through, or have let one through and lost the answer.
    """
    try:
        seen = who.api.round_view(who.federation, number)
    except CoordinatorRefused as refusal:
        return "round-closed" if refusal.slug in _TOO_LATE else None
    except (CoordinatorUnreachable, AnswerUnreadable, RequestTooSlow):
        return None
    if seen.state in _TAKES_UPDATES:
        return None
    return RECEIPT_LOST if any(one.state == "arrived" for one in seen.clients) else "round-closed"
