"""The Python way in: open the connection and the participant of a silo. Imports torch when it is needed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from client_agent.errors import Stopped

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from client_agent.rounds.participant import Participant
    from client_agent.settings import AgentSettings
    from client_agent.transport.client import CoordinatorApi


class StopFlag:
    """A request to stop, checked while sleeping and before every training step."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def listen(self) -> None:
        """Set the flag on SIGTERM and SIGINT. Main thread only."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def set(self) -> None:
        self._event.set()

    def is_set(self) -> bool:
        return self._event.is_set()

    def sleep(self, seconds: float) -> None:
        """Wait.

        Raises:
            Stopped: the flag is set before or while waiting.
        """
        if self._event.wait(seconds):
            raise Stopped

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._event.set()


def stop_on_signal() -> StopFlag:
    """Return a flag that SIGTERM and SIGINT set. Main thread only."""
    flag = StopFlag()
    flag.listen()
    return flag


@contextmanager
def connection(
    settings: AgentSettings, key: Ed25519PrivateKey | None, stop: StopFlag | None = None
) -> Iterator[CoordinatorApi]:
    """Connect to the coordinator of the settings; without `key` only for requests that need no identity."""
    import time

    from client_agent.identity.membership import read_membership
    from client_agent.transport.client import CoordinatorApi

    with CoordinatorApi(
        str(settings.url),
        key=key,
        server_key=read_membership(settings.folder).server_key if key is not None else None,
        deadline_seconds=settings.request_deadline_seconds,
        sleep=stop.sleep if stop is not None else time.sleep,
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
        AgentError: the model, the data or the connection do not work.
    """
    from client_agent.identity.key_rotation import current_key
    from client_agent.identity.membership import enrol as redeem_token
    from client_agent.identity.membership import (
        exclusive,
        is_enrolled,
        read_membership,
        set_aside_earlier_client,
    )

    if enrolment is None:
        read_membership(settings.folder)  # before torch is imported and a model loaded

    from client_agent.identity.roster import read_pins
    from client_agent.rounds.participant import Participant
    from client_agent.training.silo import open_silo

    pins, flag = read_pins(settings.roster), stop or StopFlag()
    with exclusive(settings.folder):
        silo = open_silo(settings)
        if enrolment is not None and not is_enrolled(settings.folder):
            token, name = enrolment
            with connection(settings, None, flag) as api:
                redeem_token(api, settings.folder, token=token, name=name, profile=silo.profile)
        membership = read_membership(settings.folder)
        set_aside_earlier_client(settings.folder, membership)
        key = current_key(lambda key: connection(settings, key, flag), settings.folder)
        with connection(settings, key, flag) as api:
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
                min_voices=settings.min_voices,
                lora_rank=settings.lora_rank,
                checkpoint_seconds=settings.checkpoint_seconds,
            )
