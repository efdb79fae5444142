"""`tessera agent ...`: what an engineer in a silo types. Heavy libraries are imported when a command runs."""

from __future__ import annotations

import json
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
from rich.table import Table
from rich.text import Text

from client_agent.errors import AgentError, SettingsUnusable, Stopped

if TYPE_CHECKING:
    from client_agent.coordinator_api import CoordinatorApi
    from client_agent.daemon import StopFlag
    from client_agent.participant import Participant
    from client_agent.settings import AgentSettings

agent = typer.Typer(
    name="agent", help="Run a silo's agent: enrol once, check, then leave it running.", no_args_is_help=True
)
_Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="The silo's TOML file. Every option can also be set as TESSERA_AGENT_<OPTION>.",
        show_default=False,
    ),
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def commands(app: typer.Typer) -> None:
    """Add the agent's commands to `tessera`."""
    app.add_typer(agent)


@agent.command()
def enrol(
    name: Annotated[str, typer.Option(help="The client's name, as the operator gave it with the token.")],
    token: Annotated[
        str,
        typer.Option(
            envvar="TESSERA_AGENT_TOKEN", help="The one-time token; - reads it from standard input."
        ),
    ],
    config: _Config = None,
) -> None:
    """Spend a one-time token and keep the credential in the agent's folder. Safe to repeat."""
    with _clear_errors(), _settings(config) as settings:
        from client_agent.membership import enrol as spend
        from client_agent.membership import exclusive
        from client_agent.silo import open_silo

        with exclusive(settings.folder), _connection(settings, None) as api:
            profile = open_silo(settings).profile
            membership = spend(api, settings.folder, token=_secret(token), name=name, profile=profile)
        print(f"{name} is client {membership.client_id} of federation {membership.federation_id}")


@agent.command()
def check(config: _Config = None, as_json: _Json = False) -> None:
    """Look at configuration, device, model, data and connection; exit 1 if something is wrong."""
    from client_agent.check import findings

    results = findings(config)
    if as_json:
        print(json.dumps([finding.__dict__ for finding in results], indent=1))
    else:
        table = Table("what", "", "found")
        for finding in results:
            table.add_row(finding.what, "[green]ok" if finding.good else "[red]no", Text(finding.found))
        Console().print(table)
    if not all(finding.good for finding in results):
        raise typer.Exit(1)


@agent.command()
def align(config: _Config = None) -> None:
    """Make and deliver the alignment packs that are still missing, without taking part in a round."""
    with _clear_errors(), _settings(config) as settings, _participant(settings) as (who, stop):
        from client_agent.daemon import prepare

        digest = prepare(who, stop.sleep)
        print(f"alignment pack in use: {digest}" if digest else "this federation needs no alignment")


@agent.command()
def run(
    config: _Config = None,
    name: Annotated[
        str | None,
        typer.Option(envvar="TESSERA_AGENT_NAME", help="With --token: enrol first, if not yet done."),
    ] = None,
    token: Annotated[
        str | None, typer.Option(envvar="TESSERA_AGENT_TOKEN", help="With --name: the one-time token.")
    ] = None,
) -> None:
    """Take part in rounds until the federation is finished. Stop it at any time: it resumes."""
    with _clear_errors(), _settings(config) as settings:
        from client_agent.daemon import run as keep_taking_part

        if token and not name:
            raise SettingsUnusable("--token needs --name: the client's name, as the operator gave it")
        enrolment = (_secret(token), name) if token and name else None
        with _participant(settings, enrolment) as (who, stop):
            keep_taking_part(who, stop.sleep)


@agent.command()
def train(
    plan: Annotated[Path, typer.Option(help="A federation plan as JSON: adapter, training, rounds.total.")],
    config: _Config = None,
    pack: Annotated[Path | None, typer.Option(help="An alignment pack whose frames P and Q live in.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where to write the trained adapter.")] = None,
    as_json: _Json = False,
) -> None:
    """Train alone, in the plan's steps and rounds: what this silo would reach without a federation."""
    with _clear_errors(), _settings(config) as settings:
        from client_agent.alone import read_plan, train_alone
        from client_agent.daemon import StopFlag
        from client_agent.round_folder import write_durably
        from client_agent.silo import open_silo

        stop = StopFlag()
        stop.listen()
        if out is not None and not out.parent.is_dir():
            raise SettingsUnusable(f"--out: there is no folder {out.parent}")
        body = _pack_body(pack) if pack is not None else None
        results = []
        for trained in train_alone(open_silo(settings), read_plan(plan), body, stop.is_set):
            results.append(trained)
            if out is not None:
                write_durably(out, trained.to_bytes())
            if not as_json:
                after = trained.scores.after
                print(f"round {len(results)}: exact match {after.exact_match:.3f}, loss {after.loss:.3f}")
        if as_json:
            print(json.dumps([trained.scores.model_dump() for trained in results]))


@contextmanager
def _clear_errors() -> Iterator[None]:
    """Print what went wrong and what to do; a traceback helps nobody in a silo."""
    try:
        yield
    except Stopped as stopped:
        print(stopped, file=sys.stderr)
        raise typer.Exit(0) from None
    except AgentError as error:
        said = Text.assemble(("error: ", "red"), str(error))
        Console(stderr=True, highlight=False).print(said, soft_wrap=True)
        raise typer.Exit(1) from error


def _secret(token: str) -> str:
    """Take the token as given, or from standard input, so that it shows in no list of processes."""
    return sys.stdin.readline().strip() if token == "-" else token


def _pack_body(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise SettingsUnusable(f"--pack: {file} cannot be read: {error.strerror}") from error


def _log_level() -> str:
    level = os.environ.get("TESSERA_AGENT_LOG_LEVEL", "info").upper()
    if level not in logging.getLevelNamesMapping():
        raise SettingsUnusable("TESSERA_AGENT_LOG_LEVEL must be debug, info, warning or error")
    return level


@contextmanager
def _settings(config: Path | None) -> Iterator[AgentSettings]:
    """Read the settings, and be quiet and offline-friendly from before the heavy imports on."""
    from client_agent.settings import read_settings

    logging.basicConfig(
        level=_log_level(),
        format="%(message)s",
        handlers=[RichHandler(console=Console(stderr=True), show_path=False, omit_repeated_times=False)],
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)
    yield read_settings(config)


@contextmanager
def _connection(
    settings: AgentSettings, credential: str | None, stop: StopFlag | None = None
) -> Iterator[CoordinatorApi]:
    import time

    from client_agent.coordinator_api import CoordinatorApi

    with CoordinatorApi(
        str(settings.url),
        credential=credential,
        deadline_seconds=settings.request_deadline_seconds,
        sleep=stop.sleep if stop is not None else time.sleep,
    ) as api:
        yield api


@contextmanager
def _participant(
    settings: AgentSettings, enrolment: tuple[str, str] | None = None
) -> Iterator[tuple[Participant, StopFlag]]:
    """Open everything a round needs; with `enrolment` = (token, name), enrol first where that is missing."""
    from client_agent.daemon import StopFlag
    from client_agent.membership import enrol as spend
    from client_agent.membership import exclusive, is_enrolled, read_membership
    from client_agent.participant import Participant
    from client_agent.silo import open_silo

    if enrolment is None:
        read_membership(settings.folder)  # a missing credential is said before a model is loaded
    stop = StopFlag()
    stop.listen()
    with exclusive(settings.folder):
        silo = open_silo(settings)
        if enrolment is not None and not is_enrolled(settings.folder):
            with _connection(settings, None, stop) as api:
                spend(api, settings.folder, token=enrolment[0], name=enrolment[1], profile=silo.profile)
        membership = read_membership(settings.folder)
        with _connection(settings, membership.credential, stop) as api:
            yield (
                Participant(
                    silo=silo,
                    api=api,
                    federation=membership.federation_id,
                    client=membership.client_id,
                    folder=settings.folder,
                    keep_rounds=settings.keep_rounds,
                    stop=stop.is_set,
                ),
                stop,
            )
