"""Open the connection and the participant that a command or a program of the silo works with.

Heavy libraries are imported when they are needed.
"""

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
    """Set by SIGTERM or SIGINT; sleeping and training look at it, so that stopping is quick."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def listen(self) -> None:
        """Take the signals of this process."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def set(self) -> None:
        """Ask for a stop."""
        self._event.set()

    def is_set(self) -> bool:
        """Say whether a stop was asked for."""
        return self._event.is_set()

    def sleep(self, seconds: float) -> None:
        """Wait.

        Raises:
            Stopped: a stop was asked for before or while waiting.
        """
        if self._event.wait(seconds):
            raise Stopped

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._event.set()


@contextmanager
def connection(
    settings: AgentSettings, key: Ed25519PrivateKey | None, stop: StopFlag | None = None
) -> Iterator[CoordinatorApi]:
    """Connect to the coordinator that the settings name; without `key` only what needs no identity works."""
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
def participant(
    settings: AgentSettings, enrolment: tuple[str, str] | None = None
) -> Iterator[tuple[Participant, StopFlag]]:
    """Open everything a round needs; with `enrolment` = (token, name), enrol first where that is missing."""
    from client_agent.identity.key_rotation import current_key
    from client_agent.identity.membership import enrol as spend
    from client_agent.identity.membership import (
        exclusive,
        is_enrolled,
        read_membership,
        set_aside_earlier_client,
    )

    if enrolment is None:
        read_membership(settings.folder)  # that nobody enrolled is said before torch is, and a model

    from client_agent.identity.roster import read_pins
    from client_agent.rounds.participant import Participant
    from client_agent.training.silo import open_silo

    pins = read_pins(settings.roster)
    stop = StopFlag()
    stop.listen()
    with exclusive(settings.folder):
        silo = open_silo(settings)
        if enrolment is not None and not is_enrolled(settings.folder):
            with connection(settings, None, stop) as api:
                spend(api, settings.folder, token=enrolment[0], name=enrolment[1], profile=silo.profile)
        membership = read_membership(settings.folder)
        set_aside_earlier_client(settings.folder, membership)
        key = current_key(lambda key: connection(settings, key, stop), settings.folder)
        with connection(settings, key, stop) as api:
            yield (
                Participant(
                    silo=silo,
                    api=api,
                    federation=membership.federation_id,
                    client=membership.client_id,
                    folder=settings.folder,
                    keep_rounds=settings.keep_rounds,
                    stop=stop.is_set,
                    server_key=membership.server_key,
                    pins=pins,
                    max_epsilon=settings.max_epsilon,
                    min_voices=settings.min_voices,
                    lora_rank=settings.lora_rank,
                ),
                stop,
            )
