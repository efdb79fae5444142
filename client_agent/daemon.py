"""Take part in rounds until the federation is finished; decides which errors stop the agent."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from pathlib import Path

from client_agent.alignment.pack_exchange import FramesInUse
from client_agent.errors import (
    AddressMismatch,
    AgentError,
    CoordinatorRefused,
    FederationOver,
    PivotPackAwaited,
)
from client_agent.identity.key_rotation import switch_to_accepted_key
from client_agent.rounds.client import Session
from client_agent.rounds.failure_policy import FATAL, TRANSIENT
from client_agent.rounds.final_weights import finish
from client_agent.rounds.join import archive_trained
from client_agent.rounds.participant import Participant
from client_agent.rounds.plan_checks import require_possible
from client_agent.rounds.steps import resume, take_part
from client_agent.rounds.waits import WaitLog
from client_agent.transport.handshake import require_protocol, require_sums
from client_agent.transport.responses import NoOpenRound
from schemas.messages.rounds import FinishedBrief, RoundBrief
from schemas.user_files import complaint, is_full

log = logging.getLogger("tessera.agent")

_PAUSE_SECONDS = 5.0
_LAST_PAUSES_SECONDS = 420.0
_WAIT_SECONDS = 30  # a coordinator without long polling answers at once, with a time to ask again


def run(
    participant: Participant,
    sleep: Callable[[float], None] | None = None,
    *,
    log_waits: bool = False,
) -> None:
    """Take part in rounds until the federation is finished. Safe to interrupt: the next run resumes.

    A full disk is waited for, as a lost network is.

    Args:
        sleep: waits between requests, in place of the participant's own.
        log_waits: whether to log what the agent waits for, as `tessera agent run` does.

    Raises:
        Stopped: the agent was stopped.
        VersionMismatch: the coordinator or this agent must be upgraded.
        AgentError: a person must act: the key is revoked, or the model or the data do not work.
    """
    sleep = sleep or participant.sleep
    session, is_checked, undrawn = participant.session, False, None
    waits = WaitLog(participant.session, silent=not log_waits)
    session.trackers.begin()
    while True:
        try:
            if not is_checked:
                hello = session.hello()
                require_protocol(hello)
                session.check_plan()  # an agent that has joined no round has none yet
                require_sums(hello, session.manifests.plan)
                require_possible(
                    participant.trainer.silo,
                    session.manifests.plan,
                    max_epsilon=session.max_epsilon,
                    max_delta=session.max_delta,
                    min_voices=session.min_voices,
                )
                # Once per start; a lost connection before this point leads here again.
                is_checked = True
            # Before a new round is asked for: an update on disk is sent even if its round was interrupted.
            resume(participant)
            answer = session.api.current_round(
                session.federation_id, wait_seconds=waits.poll_seconds(_WAIT_SECONDS)
            )
            if isinstance(answer, NoOpenRound):
                waits.tell()
                if answer.undrawn not in (None, undrawn):
                    undrawn = answer.undrawn
                    log.info("round %d: other clients were drawn; waiting for the next round", undrawn)
                sleep(answer.seconds)
                continue
            waits.end()
            if isinstance(answer, FinishedBrief):
                finish(participant, answer)
                _serve_last(participant, sleep)
                return
            if not take_part(participant, answer):
                sleep(_PAUSE_SECONDS)
        except TRANSIENT as trouble:
            _wait_after_failure(trouble, sleep)
        except CoordinatorRefused as refusal:
            reason = _another_coordinator(session) if refusal.slug in FATAL else None
            if refusal.slug in FATAL and reason is None and not _has_new_key(participant, refusal):
                raise
            _wait_after_failure(reason or refusal, sleep)
        except AddressMismatch:
            reason = _another_coordinator(session)
            if reason is None:
                raise
            _wait_after_failure(reason, sleep)
        except (OSError, AgentError) as error:
            if not is_full(error):
                raise
            _wait_for_space(error, participant.workspace.folder, sleep)


def _serve_last(participant: Participant, sleep: Callable[[float], None]) -> None:
    """Retry the export of the last revision until a server has it: no later revision follows.

    The pauses between retries double as during the federation, and last seven minutes together at most:
    neither a command that always fails nor an unreadable folder may keep a finished agent running.
    """
    waited = 0.0
    while (seconds := participant.keep_revisions(participant)) is not None:
        if waited + seconds > _LAST_PAUSES_SECONDS:
            log.warning(
                "the last revision is not served as [export] in silo.toml asks, and this agent ends with the "
                "federation; remove the cause that the log names, and start `tessera agent run` once more"
            )
            return
        log.info("the last revision: next try in %.0f s", seconds)
        sleep(seconds)
        waited += seconds


def _another_coordinator(session: Session) -> AgentError | None:
    """Return why the refusal may come from another coordinator; None if the enrolled coordinator answers."""
    try:
        session.hello()
    except TRANSIENT as trouble:
        return trouble
    except AgentError:
        return None
    return None


def _has_new_key(participant: Participant, refusal: CoordinatorRefused) -> bool:
    """Whether the key is revoked because its replacement is valid, or may be."""
    if refusal.slug != "key-revoked":
        return False
    try:
        return switch_to_accepted_key(participant.session.api, participant.workspace.folder)
    except TRANSIENT:
        return True  # checked again when this key is refused next
    except CoordinatorRefused as error:
        # Any other refusal, such as a rate limit, says nothing about the key.
        return error.slug not in FATAL


def prepare(participant: Participant, sleep: Callable[[float], None] | None = None) -> str | None:
    """Wait for a round, make the missing alignment packs, and return the digest of the client's own.

    Raises:
        Stopped: the agent was stopped.
        FederationOver: the federation is finished.
        PolicyRefused: the silo's policy does not allow the plan.
    """
    brief = next_round(participant, sleep)
    participant.session.check_brief(brief)
    return wait_for_frames(participant, brief, sleep).pack_digest


def wait_for_frames(
    participant: Participant, brief: RoundBrief, sleep: Callable[[float], None] | None = None
) -> FramesInUse:
    """Return the federation's frames, after the pivot's pack is stored if they are fitted to it.

    Raises:
        Stopped: the agent was stopped.
        TextTooLong: an example exceeds the base model's context.
    """
    participant.trainer.silo.require_fit(brief.training.max_length)
    if brief.alignment is not None and participant.trainer.drop_ended_pack():
        archive_trained(participant.workspace.rounds)
    while True:
        try:
            return participant.trainer.frames(brief)
        except PivotPackAwaited as trouble:
            _wait_after_failure(trouble, sleep or participant.sleep)


def next_round(participant: Participant, sleep: Callable[[float], None] | None = None) -> RoundBrief:
    """Wait for the next round that needs this client's update.

    Raises:
        Stopped: the agent was stopped.
        FederationOver: there is none.
    """
    session, is_logged = participant.session, False
    while True:
        # The first answer comes at once, so that the log says soon what the agent waits for.
        answer = session.api.current_round(
            session.federation_id,
            wait_seconds=_WAIT_SECONDS if is_logged else 0,
        )
        if isinstance(answer, FinishedBrief):
            raise FederationOver
        if isinstance(answer, RoundBrief):
            return answer
        if not is_logged:
            log.info("waiting for a round to open")
            is_logged = True
        (sleep or participant.sleep)(answer.seconds)


def _wait_for_space(error: Exception, folder: Path, sleep: Callable[[float], None]) -> None:
    """Wait after a write to a full disk; the round continues from its last complete file."""
    full = complaint(error) if isinstance(error, OSError) else str(error)
    log.warning("%s: the disk is full (%s); the agent tries again", folder, full)
    sleep(_PAUSE_SECONDS * random.uniform(0.5, 1.5))


def _wait_after_failure(trouble: AgentError, sleep: Callable[[float], None]) -> None:
    if not isinstance(trouble, PivotPackAwaited):  # its wait has log lines of its own
        log.warning("%s; the agent tries again", trouble)
    sleep(_PAUSE_SECONDS * random.uniform(0.5, 1.5))
