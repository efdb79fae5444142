"""Open what a command needs: settings, connection, participant; and print errors that say what to do.

Heavy libraries are imported when a command runs.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.text import Text

from client_agent.errors import AgentError, SettingsUnusable, Stopped

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from client_agent.coordinator_api import CoordinatorApi
    from client_agent.daemon import StopFlag
    from client_agent.participant import Participant
    from client_agent.settings import AgentSettings

Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="The silo's TOML file. Every option can also be set as TESSERA_AGENT_<OPTION>.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
_INTERRUPTED = 130  # as shells have it: 128 + SIGINT


@contextmanager
def clear_errors(*, resumes: bool = False) -> Iterator[None]:
    """Print what went wrong and what to do; a traceback helps nobody in a silo.

    `resumes` says that the command, once stopped, goes on where it was at its next start: only then is a
    stop no failure.
    """
    try:
        yield
    except Stopped:
        if resumes:
            print("stopped; what was under way resumes at the next start", file=sys.stderr)
            raise typer.Exit(0) from None
        print("stopped before the end; the next start begins anew", file=sys.stderr)
        raise typer.Exit(_INTERRUPTED) from None
    except AgentError as error:
        said = Text.assemble(("error: ", "red"), str(error))
        Console(stderr=True, highlight=False).print(said, soft_wrap=True)
        raise typer.Exit(1) from error


def _log_level() -> str:
    level = os.environ.get("TESSERA_AGENT_LOG_LEVEL", "info").upper()
    if level not in logging.getLevelNamesMapping():
        raise SettingsUnusable("TESSERA_AGENT_LOG_LEVEL must be debug, info, warning or error")
    return level


def be_quiet() -> None:
    """Log what TESSERA_AGENT_LOG_LEVEL says to standard error, and no request."""
    logging.basicConfig(
        level=_log_level(),
        format="%(message)s",
        handlers=[RichHandler(console=Console(stderr=True), show_path=False, omit_repeated_times=False)],
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)


@contextmanager
def opened_settings(config: Path | None) -> Iterator[AgentSettings]:
    """Read the settings, and be quiet and offline-friendly from before the heavy imports on."""
    from client_agent.settings import read_settings

    be_quiet()
    yield read_settings(config)


@contextmanager
def connection(
    settings: AgentSettings, key: Ed25519PrivateKey | None, stop: StopFlag | None = None
) -> Iterator[CoordinatorApi]:
    """Connect to the coordinator that the settings name; without `key` only what needs no identity works."""
    import time

    from client_agent.coordinator_api import CoordinatorApi
    from client_agent.membership import read_membership

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
    from client_agent.key_rotation import key_in_use
    from client_agent.membership import enrol as spend
    from client_agent.membership import exclusive, is_enrolled, keep_to, read_membership

    if enrolment is None:
        read_membership(settings.folder)  # that nobody enrolled is said before torch is, and a model

    from client_agent.daemon import StopFlag
    from client_agent.participant import Participant
    from client_agent.roster import read_pins
    from client_agent.silo import open_silo

    pins = read_pins(settings.roster)
    stop = StopFlag()
    stop.listen()
    with exclusive(settings.folder):
        silo = open_silo(settings)
        if enrolment is not None and not is_enrolled(settings.folder):
            with connection(settings, None, stop) as api:
                spend(api, settings.folder, token=enrolment[0], name=enrolment[1], profile=silo.profile)
        membership = read_membership(settings.folder)
        keep_to(settings.folder, membership)
        key = key_in_use(lambda key: connection(settings, key, stop), settings.folder)
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


def read_file(file: Path) -> bytes:
    """Read a file that an option names.

    Raises:
        SettingsUnusable: it cannot be read.
    """
    try:
        return file.read_bytes()
    except OSError as error:
        raise SettingsUnusable(f"{file} cannot be read: {error.strerror}") from error
