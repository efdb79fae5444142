"""The Python way in: open the connection and the participant of a silo. Imports torch when it is needed."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from client_agent.errors import SettingsUnusable, Stopped
from schemas.trackers.options import TrackerMissing
from schemas.trackers.tracker import TrackedRun
from schemas.trackers.trackers import Trackers

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from client_agent.identity.agent_folder import Membership
    from client_agent.rounds.participant import Participant
    from client_agent.rounds.sync_steps import SyncClient
    from client_agent.settings import AgentSettings
    from client_agent.training.ranks import Leader
    from client_agent.transport.client import CoordinatorApi
    from schemas.messages.enrolment import Profile


class StopFlag:
    """A request to stop, checked while sleeping and before every training step.

    Args:
        seconds: the time after which the flag sets itself; None = never.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self._event = threading.Event()
        # Monotonic, since the wall clock may be set while the agent runs.
        self._end = time.monotonic() + seconds if seconds is not None else inf

    def listen(self) -> None:
        """Set the flag on SIGTERM and SIGINT. Main thread only."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def set(self) -> None:
        self._event.set()

    def is_set(self) -> bool:
        return self._event.is_set() or time.monotonic() >= self._end

    def sleep(self, seconds: float) -> None:
        """Wait.

        Raises:
            Stopped: the flag is set before or while waiting.
        """
        if self._event.wait(max(0.0, min(seconds, self._end - time.monotonic()))) or self.is_set():
            raise Stopped

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self._event.is_set():
            # A step may take seconds, and a buffered write may be what the signal interrupts.
            os.write(sys.stderr.fileno(), b"stopping ...\n")
        self._event.set()


def stop_on_signal(seconds: float | None = None) -> StopFlag:
    """Return a flag that SIGTERM and SIGINT set, and the end of a time. Main thread only."""
    flag = StopFlag(seconds)
    flag.listen()
    return flag


@contextmanager
def connection(
    settings: AgentSettings, key: Ed25519PrivateKey | None, stop: StopFlag | None = None
) -> Iterator[CoordinatorApi]:
    """Connect to the coordinator of the settings; without `key` only for requests that need no identity."""
    from client_agent.identity.agent_folder import read_membership
    from client_agent.transport.client import CoordinatorApi
    from client_agent.transport.sent_log import SentLog

    with CoordinatorApi(
        str(settings.url),
        key=key,
        # Before enrolment the coordinator's key is unknown; it comes with the first answer.
        server_key=read_membership(settings.folder).server_key if key is not None else None,
        deadline_seconds=settings.request_deadline_seconds,
        sleep=stop.sleep if stop is not None else time.sleep,
        sent=SentLog(settings.folder),
    ) as api:
        yield api


@contextmanager
def open_participant(
    settings: AgentSettings,
    enrolment: tuple[str, str] | None = None,
    *,
    stop: StopFlag | None = None,
) -> Iterator[Participant]:
    """Load the silo's model and data, and connect as its client. The agent's folder is locked meanwhile.

    Args:
        enrolment: an enrolment token and the client's name, to enrol first if the folder has no membership.
        stop: lets another thread or a signal handler stop the participant; it then raises `Stopped`.

    Raises:
        NotEnrolled: the folder has no membership, and `enrolment` is None.
        FolderInUse: another process uses the folder.
        SettingsUnusable: a tracker of `report_to` is not installed.
        AgentError: the model, the data or the connection do not work.
    """
    from client_agent.identity.agent_folder import exclusive, read_membership
    from client_agent.identity.key_rotation import current_key
    from client_agent.identity.membership import require_enrolled, set_aside_earlier_client

    if enrolment is None:
        read_membership(settings.folder)  # before torch is imported and a model loaded
    require_trackers(settings)

    from client_agent.identity.roster import read_pins
    from client_agent.revisions.store import RevisionKeeper
    from client_agent.rounds.participant import Participant
    from client_agent.training.silo import open_silo

    pins, flag = read_pins(settings.roster), stop or StopFlag()
    with exclusive(settings.folder):
        silo = open_silo(settings)
        if enrolment is not None:
            _enrol_once(settings, enrolment, silo.profile, flag)
        membership = read_membership(settings.folder)
        require_enrolled(settings.folder, silo.base.slug, silo.tokenizer)
        set_aside_earlier_client(settings.folder, membership)
        # A key rotation may have been interrupted between the coordinator's acceptance and the local file.
        key = current_key(lambda key: connection(settings, key, flag), settings.folder)
        with connection(settings, key, flag) as api, _trackers(settings, membership) as trackers:
            yield Participant.of(
                silo,
                api,
                membership,
                settings.folder,
                keep_rounds=settings.keep_rounds,
                stop=flag.is_set,
                sleep=flag.sleep,
                pins=pins,
                max_epsilon=settings.max_epsilon,
                max_delta=settings.max_delta,
                min_voices=settings.min_voices,
                policy=settings.policy,
                lora_rank=settings.lora_rank,
                checkpoint_seconds=settings.checkpoint_seconds,
                reports_progress=settings.report_progress,
                trackers=trackers,
                keep_revisions=RevisionKeeper(settings, membership.name),
            )


@contextmanager
def open_sync(settings: AgentSettings, stop: StopFlag) -> Iterator[SyncClient]:
    """Connect as the client of a folder, without its model. The agent's folder is locked meanwhile.

    Raises:
        NotEnrolled: the folder has no membership.
        FolderInUse: another process uses the folder.
    """
    from client_agent.identity.agent_folder import exclusive, read_membership
    from client_agent.identity.key_rotation import current_key
    from client_agent.identity.membership import set_aside_earlier_client

    read_membership(settings.folder)
    require_trackers(settings)
    with exclusive(settings.folder):
        membership = read_membership(settings.folder)
        set_aside_earlier_client(settings.folder, membership)
        key = current_key(lambda key: connection(settings, key, stop), settings.folder)
        with connection(settings, key, stop) as api, _trackers(settings, membership) as trackers:
            yield _sync_client(settings, api, membership, stop, trackers)


@contextmanager
def open_offline(settings: AgentSettings, stop: StopFlag) -> Iterator[SyncClient]:
    """Open the client of a folder without a connection: stored answers replace the coordinator's.

    Raises:
        NotEnrolled: the folder has no membership.
    """
    from client_agent.identity.agent_folder import read_membership
    from client_agent.identity.membership import read_key
    from client_agent.rounds.stored_answers import StoredAnswers
    from client_agent.transport.client import CoordinatorApi

    membership = read_membership(settings.folder)
    with (
        _trackers(settings, membership) as trackers,
        CoordinatorApi(
            str(settings.url),
            key=read_key(settings.folder),
            server_key=membership.server_key,
            deadline_seconds=0.0,
            sleep=stop.sleep,
            transport=StoredAnswers(settings.folder / membership.federation_id),
        ) as api,
    ):
        yield _sync_client(settings, api, membership, stop, trackers)


def with_model(
    client: SyncClient, settings: AgentSettings, stop: StopFlag, ranks: Leader | None = None
) -> Participant:
    """Load the silo's model and data for an opened client.

    Raises:
        SettingsUnusable: a tracker of `report_to` is not installed.
    """
    require_trackers(settings)
    from client_agent.identity.agent_folder import read_membership
    from client_agent.identity.membership import require_enrolled
    from client_agent.revisions.store import RevisionKeeper
    from client_agent.rounds.participant import Participant, Trainer
    from client_agent.training.silo import open_silo

    silo = open_silo(settings)
    require_enrolled(settings.folder, silo.base.slug, silo.tokenizer)
    silo.ranks = ranks
    trainer = Trainer(silo, client.session, stop.is_set, settings.lora_rank, settings.checkpoint_seconds)
    keeper = RevisionKeeper(settings, read_membership(settings.folder).name)
    return Participant(client.session, client.workspace, trainer, stop.sleep, keeper)


def require_trackers(settings: AgentSettings) -> None:
    """Raise SettingsUnusable if a tracker of the settings is not installed."""
    try:
        settings.trackers.require_installed()
    except TrackerMissing as missing:
        raise SettingsUnusable(f"report_to: {missing}") from None


def _enrol_once(
    settings: AgentSettings, enrolment: tuple[str, str], profile: Profile, stop: StopFlag
) -> None:
    from client_agent.identity.agent_folder import is_enrolled
    from client_agent.identity.membership import enrol as redeem_token

    if is_enrolled(settings.folder):
        return
    token, name = enrolment
    with connection(settings, None, stop) as api:
        redeem_token(api, settings.folder, token=token, name=name, profile=profile)


def alone_trackers(settings: AgentSettings) -> Trackers:
    """Return the trackers of a training without a federation, which begins a run of its own.

    Raises:
        SettingsUnusable: one is not installed.
    """
    require_trackers(settings)
    began = f"alone-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    trackers = settings.trackers.open(TrackedRun("alone", began, began))
    trackers.begin()
    return trackers


def _trackers(settings: AgentSettings, member: Membership) -> Trackers:
    facts = {"client": member.name, "federation": member.federation_id, "model": Path(settings.model).name}
    return settings.trackers.open(TrackedRun(member.federation_id, member.name, member.client_id, facts))


def _sync_client(
    settings: AgentSettings,
    api: CoordinatorApi,
    member: Membership,
    stop: StopFlag,
    trackers: Trackers,
) -> SyncClient:
    from client_agent.identity.roster import read_pins
    from client_agent.rounds.client import Session, Workspace
    from client_agent.rounds.sync_steps import SyncClient

    workspace = Workspace(settings.folder, member.federation_id, settings.keep_rounds)
    session = Session(
        api=api,
        federation_id=member.federation_id,
        client_id=member.client_id,
        server_key=member.server_key,
        home=workspace.home,
        pins=read_pins(settings.roster),
        max_epsilon=settings.max_epsilon,
        max_delta=settings.max_delta,
        min_voices=settings.min_voices,
        policy=settings.policy,
        trackers=trackers,
    )
    return SyncClient(session, workspace, stop.sleep, settings.lora_rank)
