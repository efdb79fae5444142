"""Failure policy of the agent: retry, close the round without this client, or stop and report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from client_agent.errors import (
    AgentError,
    AnotherCoordinator,
    AnswerUnreadable,
    CoordinatorRefused,
    CoordinatorUnreachable,
    DownloadDamaged,
    ManifestExpired,
    ManifestRefused,
    PivotPackAwaited,
    RequestTooSlow,
)
from client_agent.storage.round_folder import READY, RECEIPT, SCORES_SENT, RoundFolder

if TYPE_CHECKING:
    from client_agent.rounds.client import Session

# By slug, not by status: a proxy in front of a restarting coordinator answers 404 and 403 too, without one.
FATAL: Final = frozenset(
    {
        "key-revoked",
        "signature-invalid",
        "signature-profile",
        "forbidden",
        "not-found",
        "protocol-version",
        "capability-missing",
        "layout-mismatch",
    }
)
"""Refusals outside a round's steps after which the agent stops: the same request would be refused again."""
TRANSIENT: Final = (
    AnotherCoordinator,
    CoordinatorUnreachable,
    DownloadDamaged,
    AnswerUnreadable,
    ManifestExpired,
    PivotPackAwaited,
    RequestTooSlow,
)
"""Errors after which the agent tries again, for as long as it runs."""
TROUBLE: Final = (CoordinatorRefused, CoordinatorUnreachable, AnswerUnreadable, RequestTooSlow)
RECEIPT_LOST: Final = "receipt-lost"

_NOT_JOINED, _NOT_FOUND = "not-joined", "not-found"
# The round closed before the request.
TOO_LATE: Final = frozenset({"round-closed", _NOT_JOINED, _NOT_FOUND})
# The content is refused: the same bytes would be refused again.
CONTENT_REFUSED: Final = frozenset({400, 409, 412, 413, 415, 422})
_ACCEPTS_UPDATES: Final = frozenset({"open", "collecting"})


def closing_reason(session: Session, folder: RoundFolder, file: str, trouble: AgentError) -> str | None:
    """Return why a retry cannot succeed, as a slug; None if it can.

    Args:
        file: the result of the step that failed.

    Raises:
        ManifestRefused: the coordinator has lost the round or this client's join, so that its next round of
            the same number would wait for this client in vain.
    """
    if isinstance(trouble, CoordinatorRefused):
        # A signed manifest is proof: the coordinator was set back, and a person has to decide.
        if session.manifests.has_joined(folder.number) and _denies_join(session, folder.number, trouble):
            raise ManifestRefused(
                f"its manifest proves that this client joined round {folder.number}, and it denies that"
            ) from trouble
        # Only steps that send: a refusal of another step may be over at the next try.
        refused = file in (READY, RECEIPT, SCORES_SENT) and trouble.status in CONTENT_REFUSED
        if refused or trouble.slug in TOO_LATE:
            return trouble.slug
    return outcome_of(session, folder.number) if file == RECEIPT else None


def _denies_join(session: Session, round_number: int, refusal: CoordinatorRefused) -> bool:
    """Whether a refusal shows that the coordinator was set back to before this client joined a round.

    A missing body is no evidence, because weights of old rounds may be deleted. Lists of clients never are.
    """
    if refusal.slug != _NOT_FOUND:
        return refusal.slug == _NOT_JOINED
    try:
        view = session.api.round_view(session.federation_id, round_number)
        return all(client.client_id != session.client_id for client in view.clients)
    except CoordinatorRefused as unknown:
        return unknown.slug == _NOT_FOUND
    except (CoordinatorUnreachable, AnswerUnreadable, RequestTooSlow):
        return False


def outcome_of(session: Session, round_number: int) -> str | None:
    """Return how a round without a receipt ended; None if it accepts updates, or is unknown.

    It asks the coordinator, because a proxy may block all updates, or deliver one and lose the answer.
    """
    try:
        view = session.api.round_view(session.federation_id, round_number)
    except CoordinatorRefused as refusal:
        return "round-closed" if refusal.slug in TOO_LATE else None
    except (CoordinatorUnreachable, AnswerUnreadable, RequestTooSlow):
        return None
    if view.state in _ACCEPTS_UPDATES:
        return None
    return RECEIPT_LOST if any(client.state == "arrived" for client in view.clients) else "round-closed"
