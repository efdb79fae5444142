"""What keeps a silo in a federation: enrol, check, status, align, run. What it would reach alone: train."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from client_agent.cli.console import Config, Json, clear_errors, opened_settings, read_file
from client_agent.errors import SettingsUnusable
from client_agent.session import connection, open_participant, stop_on_signal

if TYPE_CHECKING:
    from client_agent.status import AgentStatus

agent = typer.Typer()


@agent.command()
def enrol(
    name: Annotated[str, typer.Option(help="The client's name, as the operator gave it with the token.")],
    token: Annotated[
        str,
        typer.Option(
            envvar="TESSERA_AGENT_TOKEN", help="The one-time token; - reads it from standard input."
        ),
    ],
    config: Config = None,
) -> None:
    """Make a key in the agent's folder and spend a one-time token on it. Safe to repeat.

    Prints what the federation's plan lets other members learn; exit 1 if that is more than `min_voices` of
    this silo allows. Until then the coordinator has its name, its profile and its public key, and no more.
    """
    with clear_errors(), opened_settings(config) as settings:
        from client_agent.identity.membership import enrol as spend
        from client_agent.identity.membership import exclusive, read_key
        from client_agent.privacy.budget import require_voices
        from client_agent.rounds.plan import whole_plan
        from client_agent.training.silo import open_silo
        from schemas.identity.keys import name_of
        from schemas.peers import of_members

        with exclusive(settings.folder), connection(settings, None) as api:
            profile = open_silo(settings).profile
            membership = spend(api, settings.folder, token=_secret(token), name=name, profile=profile)
        print(f"{name} is client {membership.client_id} of federation {membership.federation_id}")
        key = read_key(settings.folder)
        print(f"its public key is {name_of(key)}")
        with connection(settings, key) as api:
            plan = whole_plan(api, membership.federation_id)
        print(*of_members(plan), sep="\n")
        require_voices(plan, settings.min_voices)


@agent.command("rotate-key")
def rotate_key(
    config: Config = None,
    at_once: Annotated[
        bool,
        typer.Option("--at-once", help="End the old key and all before it now: one may be in wrong hands."),
    ] = False,
) -> None:
    """Replace the agent's key while it does not run; the old one counts for an hour. Safe to repeat."""
    with clear_errors(), opened_settings(config) as settings:
        from client_agent.identity.key_rotation import replace_key
        from client_agent.identity.membership import exclusive

        with exclusive(settings.folder):
            connect = partial(connection, settings)
            over = replace_key(connect, settings.folder, at_once=at_once)
        print(f"the new key is in use; the old one is over: {over}")


@agent.command("accept-restored")
def accept_restored(
    config: Config = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask: go on from what is offered.")] = False,
) -> None:
    """Go on with a coordinator that was restored from a backup older than what this silo has seen of it.

    For while the agent does not run. A coordinator that goes back is refused, because it may be lying; only
    the operator can tell you that a backup was restored, and of when. Shown is what this silo has seen, and
    what the coordinator, by its key, offers now. If you agree, rounds go on from there. What was seen later
    is kept in `earlier/`; the adapter that was trained last is not lost: the next round begins from it.
    """
    with clear_errors(), opened_settings(config) as settings:
        from client_agent.identity.backup_recovery import accept, look
        from client_agent.identity.key_rotation import key_in_use
        from client_agent.identity.manifests import Manifests
        from client_agent.identity.membership import exclusive, read_membership
        from client_agent.identity.roster import read_pins

        pins, connect = read_pins(settings.roster), partial(connection, settings)
        with exclusive(settings.folder):
            member, key = read_membership(settings.folder), key_in_use(connect, settings.folder)
            with connect(key) as api:
                home, me = settings.folder / member.federation_id, member.client_id
                held = Manifests(home, member.federation_id, me, member.server_key, api.now)
                offer = look(held, pins, api)
                print(offer)
                if not yes:
                    typer.confirm("Did the operator restore a backup, and go on from there?", abort=True)
                accept(offer, held, pins, api)
        print("accepted: `tessera agent run` goes on from there")


@agent.command()
def check(
    config: Config = None,
    plan: Annotated[
        Path | None,
        typer.Option(help="A federation plan as JSON to check for, instead of the federation's own."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Look at configuration, device, model, data and connection; exit 1 if something is wrong."""
    from client_agent.preflight import findings

    results = findings(config, plan)
    if as_json:
        print(json.dumps([finding.document() for finding in results], indent=1))
    else:
        table = Table("what", "", "found")
        for finding in results:
            table.add_row(finding.subject, "[green]ok" if finding.passed else "[red]no", Text(finding.detail))
        Console().print(table)
    if not all(finding.passed for finding in results):
        raise typer.Exit(1)


@agent.command()
def status(config: Config = None, as_json: Json = False) -> None:
    """Show whether the agent runs, what its coordinator says, and how the last rounds went.

    Loads no model, and may be asked at any time. Exit 1 unless all is well: the coordinator answers, and
    either the agent runs or the federation is finished.
    """
    with clear_errors(), opened_settings(config) as settings:
        from client_agent.status import read_status

        now = read_status(settings)
        if as_json:
            print(json.dumps(asdict(now), indent=1))
        else:
            _show(now)
        if not now.well:
            raise typer.Exit(1)


@agent.command()
def align(config: Config = None) -> None:
    """Make and deliver the alignment packs that are still missing, without taking part in a round."""
    with (
        clear_errors(resumes=True),
        opened_settings(config) as settings,
        open_participant(settings, stop=stop_on_signal()) as participant,
    ):
        from client_agent.daemon import prepare

        digest = prepare(participant)
        print(f"alignment pack in use: {digest}" if digest else "this federation needs no alignment")


@agent.command()
def run(
    config: Config = None,
    name: Annotated[
        str | None,
        typer.Option(envvar="TESSERA_AGENT_NAME", help="With --token: enrol first, if not yet done."),
    ] = None,
    token: Annotated[
        str | None, typer.Option(envvar="TESSERA_AGENT_TOKEN", help="With --name: the one-time token.")
    ] = None,
) -> None:
    """Take part in rounds until the federation is finished. Stop it at any time: it resumes."""
    with clear_errors(resumes=True), opened_settings(config) as settings:
        if token and not name:
            raise SettingsUnusable("--token needs --name: the client's name, as the operator gave it")
        enrolment = (_secret(token), name) if token and name else None
        with open_participant(settings, enrolment, stop=stop_on_signal()) as participant:
            from client_agent.daemon import run as run_rounds

            run_rounds(participant)


@agent.command()
def train(
    plan: Annotated[Path, typer.Option(help="A federation plan as JSON: adapter, training, rounds.total.")],
    config: Config = None,
    pack: Annotated[Path | None, typer.Option(help="An alignment pack whose frames P and Q live in.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where to write the trained adapter.")] = None,
    as_json: Json = False,
) -> None:
    """Train alone, in the plan's steps and rounds: what this silo would reach without a federation."""
    with clear_errors(), opened_settings(config) as settings:
        # What is cheap to see is said before torch is imported, which takes seconds.
        if out is not None and not out.parent.is_dir():
            raise SettingsUnusable(f"--out: there is no folder {out.parent}")
        body = read_file(pack) if pack is not None else None

        from client_agent.rounds.plan import read_plan
        from client_agent.rounds.standalone import require_frames, train_alone
        from client_agent.storage.files import write_durably
        from client_agent.training.silo import open_silo

        stop = stop_on_signal()
        planned = read_plan(plan)
        require_frames(planned, body)
        results = []
        for trained in train_alone(open_silo(settings), planned, body, stop.is_set):
            results.append(trained)
            if out is not None:
                write_durably(out, trained.to_bytes())
            if not as_json:
                after = trained.scores.after
                print(f"round {len(results)}: exact match {after.exact_match:.3f}, loss {after.loss:.3f}")
        if as_json:
            print(json.dumps([trained.scores.model_dump() for trained in results]))


def _show(now: AgentStatus) -> None:
    facts = Table(show_header=False)
    facts.add_row("client", Text(f"{now.name}, {now.client} of federation {now.federation}"))
    facts.add_row("agent", "runs" if now.running else "does not run")
    facts.add_row("coordinator", Text(f"{now.url}: {now.coordinator}"))
    rounds = Table("round", "exact match before", "after", "bytes sent", "state")
    for one in now.rounds:
        scores = ("-" if score is None else f"{score:.3f}" for score in (one.before, one.after))
        sent = "-" if one.bytes_sent is None else f"{one.bytes_sent:,}"
        rounds.add_row(str(one.round), *scores, sent, Text(one.state))
    Console().print(facts)
    if now.rounds:
        Console().print(rounds)


def _secret(token: str) -> str:
    """Take the token as given, or from standard input, so that it shows in no list of processes."""
    return sys.stdin.readline().strip() if token == "-" else token
