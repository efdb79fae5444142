"""Keep taking part until the federation is over. Decides what stops the agent and what is only waited out."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

from client_agent.alignment.pack_exchange import FramesInUse
from client_agent.errors import (
    AgentError,
    AnswerUnreadable,
    CoordinatorRefused,
    CoordinatorUnreachable,
    DownloadDamaged,
    FederationOver,
    ManifestExpired,
    PivotPackAwaited,
    RequestTooSlow,
)
from client_agent.identity.key_rotation import switch_to_accepted_key
from client_agent.rounds.participant import Participant
from client_agent.rounds.steps import finish, resume, take_part
from client_agent.transport.client import NothingYet
from schemas.messages.rounds import FinishedBrief, RoundBrief

log = logging.getLogger("tessera.agent")

# Only in our own words: a proxy whose coordinator is being replaced answers 404 and 403 too, without a slug.
_FATAL = frozenset(
    {"key-revoked", "signature-invalid", "signature-profile", "forbidden", "not-found", "protocol-version"}
)
_PASSING = (
    CoordinatorUnreachable,
    DownloadDamaged,
    AnswerUnreadable,
    ManifestExpired,
    PivotPackAwaited,
    RequestTooSlow,
)
_PAUSE_AFTER_TROUBLE = 5.0
_WAIT_SECONDS = 30  # a coordinator that cannot make us wait answers at once, and says when to come back


def run(participant: Participant, sleep: Callable[[float], None]) -> None:
    """Poll, take part, repeat; returns when the federation is finished.

    Raises:
        Stopped: a stop was asked for.
        AgentError: something only a person can mend: a revoked key, a model or data that do not work.
    """
    while True:
        try:
            resume(participant)
            answer = participant.api.current_round(participant.federation, wait_seconds=_WAIT_SECONDS)
            if isinstance(answer, NothingYet):
                sleep(answer.seconds)
                continue
            if isinstance(answer, FinishedBrief):
                finish(participant, answer)
                return
            if not take_part(participant, answer):
                sleep(_PAUSE_AFTER_TROUBLE)
        except _PASSING as trouble:
            _wait_out(trouble, sleep)
        except CoordinatorRefused as refusal:
            if refusal.slug in _FATAL and not _has_another_key(participant, refusal):
                raise
            _wait_out(refusal, sleep)


def _has_another_key(participant: Participant, refusal: CoordinatorRefused) -> bool:
    """Say whether our key is over because the one that is to replace it counts, or may."""
    if refusal.slug != "key-revoked":
        return False
    try:
        return switch_to_accepted_key(participant.api, participant.folder)
    except _PASSING:
        return True  # asked again, when this key is refused the next time
    except CoordinatorRefused as other:
        return other.slug not in _FATAL


def prepare(participant: Participant, sleep: Callable[[float], None]) -> str | None:
    """Wait for a round, make the packs that are missing, and give the digest of ours.

    Raises:
        Stopped: a stop was asked for.
        FederationOver: there is nothing to prepare for.
    """
    return frames_when_there(participant, next_round(participant, sleep), sleep).pack_digest


def frames_when_there(
    participant: Participant, brief: RoundBrief, sleep: Callable[[float], None]
) -> FramesInUse:
    """Return the federation's frames, and wait for the pivot's pack where they are made on another's.

    Raises:
        Stopped: a stop was asked for.
    """
    participant.follow_packs(brief)
    while True:
        try:
            return participant.frames(brief)
        except PivotPackAwaited as trouble:
            _wait_out(trouble, sleep)


def next_round(participant: Participant, sleep: Callable[[float], None]) -> RoundBrief:
    """Wait for a round that waits for us: not before the federation starts, nor while our update is in.

    Raises:
        Stopped: a stop was asked for.
        FederationOver: there will be none.
    """
    is_told = False
    while True:
        answer = participant.api.current_round(
            participant.federation, wait_seconds=_WAIT_SECONDS if is_told else 0
        )
        if isinstance(answer, FinishedBrief):
            raise FederationOver
        if isinstance(answer, RoundBrief):
            return answer
        if not is_told:
            log.info("waiting for a round to open")
            is_told = True
        sleep(answer.seconds)


def _wait_out(trouble: AgentError, sleep: Callable[[float], None]) -> None:
    log.warning("%s; the agent goes on", trouble)
    sleep(_PAUSE_AFTER_TROUBLE * random.uniform(0.5, 1.5))
