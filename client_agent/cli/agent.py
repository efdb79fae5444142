"""Commands of a silo's agent: enrol, rotate-key, accept-restored, status, align and run."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from client_agent.cli.console import Config, Json, clear_errors, opened_settings
from client_agent.errors import SettingsUnusable, WorkNeeded
from client_agent.session import connection, open_participant, stop_on_signal
from client_agent.torchrun import follows, led
from schemas.command import Yes, confirm

if TYPE_CHECKING:
    from client_agent.settings import AgentSettings
    from client_agent.status import AgentStatus
    from client_agent.training.silo import Silo
    from schemas.messages.enrolment import Profile

agent = typer.Typer()

_ENROL_SECONDS = 20.0
"""The limit of a request of `enrol`, which would otherwise retry for a quarter of an hour."""


@agent.command()
def enrol(
    name: Annotated[str, typer.Option(help="The client's name, for which the operator created the token.")],
    token: Annotated[
        str,
        typer.Option(
            envvar="TESSERA_AGENT_TOKEN", help="The enrolment token, or - to read it from standard input."
        ),
    ],
    config: Config = None,
    prepared: Annotated[
        bool,
        typer.Option(
            "--prepared",
            help="Enrol the model that `tessera agent work --prepare` examined, without loading it.",
        ),
    ] = False,
) -> None:
    """Create a key in the agent's folder and enrol the client with an enrolment token. Safe to repeat.

    Prints what the federation's plan reveals to other members and, with a secure sum, to the coordinator.
    Exit 1 if `run` would refuse the plan: it breaks a setting or the `policy` table of silo.toml, or does not
    suit the silo's data, shared model or `trainer`. With --prepared, neither model nor data are loaded, and
    only `min_voices`, `policy` and `trainer` are checked. After a refusal the coordinator has only the
    client's name, profile and public key.

    Example: `tessera agent enrol --config silo.toml --name aster --token TOKEN`
    """
    with clear_errors(), opened_settings(config) as settings:
        from client_agent.identity.agent_folder import exclusive
        from client_agent.identity.membership import (
            checked_name,
            read_key,
            read_token,
            require_unenrolled,
        )
        from client_agent.identity.membership import enrol as redeem_token
        from client_agent.privacy.budget import require_voices
        from client_agent.rounds.client import require_policy
        from client_agent.rounds.plan import parse_plan, require_trainer
        from schemas.identity.keys import name_of
        from schemas.operator_claims import coordinator_sees
        from schemas.peers import member_claims

        name, secret = checked_name(name), _secret(token)
        server = read_token(secret).server  # as the name, before a model is loaded
        # A person types this once, and nothing is lost by typing it again.
        if "request_deadline_seconds" not in settings.model_fields_set:
            settings = settings.model_copy(update={"request_deadline_seconds": _ENROL_SECONDS})
        with exclusive(settings.folder), connection(settings, None) as api:
            # A model takes minutes to load; the folder and the URL are known to be right or wrong before.
            require_unenrolled(settings.folder)
            api.proved_hello(server)
            silo = None if prepared else _opened_silo(settings)
            # The token is used up by an enrolment, so the model is loaded before and not after.
            profile = silo.profile if silo is not None else _prepared_profile(settings.folder)
            membership = redeem_token(api, settings.folder, token=secret, name=name, profile=profile)
        print(f"{name} is client {membership.client_id} of federation {membership.federation_id}")
        key = read_key(settings.folder)
        print(f"its public key is {name_of(key)}")
        with connection(settings, key) as api:
            served = api.plan(membership.federation_id)
        plan = parse_plan(served)
        if (summed := plan.privacy.secure_sum) is not None:
            print(coordinator_sees(plan, summed))
        print(*member_claims(plan), sep="\n")
        # Only members may read the plan, so it is checked after the enrolment; nothing is sent until `run`.
        require_voices(plan, settings.min_voices)
        require_policy(settings.policy, plan, served)
        require_trainer(settings, plan)
        if silo is not None:
            from client_agent.rounds.plan_checks import require_possible

            require_possible(
                silo,
                plan,
                max_epsilon=settings.max_epsilon,
                max_delta=settings.max_delta,
                min_voices=settings.min_voices,
            )


@agent.command("rotate-key")
def rotate_key(
    config: Config = None,
    at_once: Annotated[
        bool,
        typer.Option(
            "--at-once",
            help="Revoke the old key and all earlier keys immediately, without the hour of overlap. Use it "
            "if a key may be compromised.",
        ),
    ] = False,
) -> None:
    """Replace the agent's key. Stop the agent first. Safe to repeat.

    The old key stays valid for an hour, so that requests in progress still succeed.
    """
    with clear_errors(), opened_settings(config) as settings:
        from client_agent.identity.agent_folder import exclusive
        from client_agent.identity.key_rotation import replace_key

        with exclusive(settings.folder):
            connect = partial(connection, settings)
            expires_at = replace_key(connect, settings.folder, at_once=at_once)
        print(f"the new key is in use; {_old_key(expires_at, at_once)}")
        print("next: tessera agent run, as before")


@agent.command("accept-restored")
def accept_restored(
    config: Config = None,
    yes: Yes = False,
) -> None:
    """Accept a coordinator that was restored from a backup older than this silo's last round.

    Stop the agent first. The agent refuses a coordinator that goes back to an older state, because it may be
    dishonest. Ask the operator whether a backup was restored, and of which time. The command prints the
    silo's last signed round and the state that the coordinator offers now, and asks for confirmation. Rounds
    then continue from the offered state. Later state moves to `earlier/`; the next round begins from the
    adapter that was trained last.
    """
    with clear_errors(), opened_settings(config) as settings:
        from client_agent.identity.agent_folder import exclusive, read_membership
        from client_agent.identity.backup_recovery import accept, compare_state
        from client_agent.identity.key_rotation import current_key
        from client_agent.identity.manifests import Manifests
        from client_agent.identity.roster import read_pins

        pins, connect = read_pins(settings.roster), partial(connection, settings)
        with exclusive(settings.folder):
            member, key = read_membership(settings.folder), current_key(connect, settings.folder)
            with connect(key) as api:
                federation_folder, client_id = settings.folder / member.federation_id, member.client_id
                manifests = Manifests(
                    federation_folder, member.federation_id, client_id, member.server_key, api.now
                )
                offer = compare_state(manifests, pins, api)
                print(offer)
                confirm(
                    "if the operator restored no backup, the coordinator may be dishonest; this silo "
                    "continues from the offered state",
                    yes=yes,
                )
                accept(offer, manifests, pins, api)
        print("accepted; `tessera agent run` continues from the offered state")


@agent.command()
def status(config: Config = None, as_json: Json = False) -> None:
    """Show whether the agent runs, the coordinator's answer, and the scores of the last rounds.

    Loads no model, and can be used while the agent runs. Exit 1 unless the coordinator answers, and either
    the agent runs or the federation is finished.
    """
    with clear_errors(), opened_settings(config) as settings:
        from client_agent.status import read_status

        agent_status = read_status(settings)
        if as_json:
            print(json.dumps(agent_status.document(), indent=1))
        else:
            _show(agent_status, config, settings.keep_rounds)
        if not agent_status.well:
            raise typer.Exit(1)


@agent.command()
def align(config: Config = None) -> None:
    """Make and upload the missing alignment packs without training in a round."""
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
        typer.Option(
            envvar="TESSERA_AGENT_NAME",
            help="With --token: name under which to enrol first, if the client is not enrolled.",
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="TESSERA_AGENT_TOKEN",
            help="With --name: the enrolment token, or - to read it from standard input.",
        ),
    ] = None,
) -> None:
    """Participate in rounds until the federation is finished. Safe to stop at any time: it resumes.

    Ctrl-C or SIGTERM stops the agent with status 0 and stores its position; the same command continues.

    Examples:

    - `tessera agent run --config silo.toml`

    - `tessera agent run --config silo.toml --name aster --token TOKEN`
    """
    with clear_errors(resumes=True), opened_settings(config) as settings:
        from client_agent.identity.membership import checked_name, read_token

        if token and not name:
            raise SettingsUnusable(
                "--token needs a name; add --name with the name for which the operator created the token"
            )
        # Other ranks have no connection, and must not enrol or lock the folder.
        if follows(settings):
            return
        enrolment, stop = (_secret(token), checked_name(name)) if token and name else None, stop_on_signal()
        if enrolment is not None:
            read_token(enrolment[0])  # before a model is loaded
        with (
            led(settings) as (settings, ranks),
            open_participant(settings, enrolment, stop=stop) as participant,
        ):
            from client_agent.daemon import run as run_rounds

            participant.trainer.silo.ranks = ranks
            run_rounds(participant, log_waits=True)


def _show(agent_status: AgentStatus, config: Path | None, keep_rounds: int) -> None:
    from schemas.messages.scores import as_text

    facts = Table(show_header=False)
    facts.add_row(
        "client", Text(f"{agent_status.name}, {agent_status.client} of federation {agent_status.federation}")
    )
    facts.add_row("agent", "running" if agent_status.running else "not running")
    if agent_status.last_sync is not None:
        facts.add_row("last sync", agent_status.last_sync)
    # The sentence of a failed connection begins with the URL.
    answer = agent_status.coordinator.removeprefix(f"{agent_status.url} ")
    facts.add_row("coordinator", Text(f"{agent_status.url}: {answer}"))
    if agent_status.learning_rate is not None:
        facts.add_row("learning rate", Text(agent_status.learning_rate))
    if agent_status.final_scores is not None:
        facts.add_row("final weights", f"held-out {as_text(agent_status.final_scores)}")
    gated = next((row for row in agent_status.rounds if row.gates), None)
    if gated is not None and gated.gates is not None:
        shares = ", ".join(f"{block} {share:.2f}" for block, share in gated.gates.items())
        facts.add_row("gates", f"share of the served weights after round {gated.round}, by block: {shares}")
    if (serving := agent_status.serving) is not None:
        facts.add_row("serving", Text(str(serving)))
        if serving.failure is not None:
            facts.add_row("to try again", Text(serving.failure))
    rounds = Table("round", "loss", "kept", "scores of the kept", "rate", "bytes sent", "state")
    if agent_status.rounds and agent_status.rounds[-1].round > 1:
        rounds.caption = f"Earlier rounds are no longer in the agent's folder (keep_rounds = {keep_rounds})."
        rounds.caption_justify = "left"
    for row in agent_status.rounds:
        loss = "-" if row.served is None else f"{row.served:.3f} -> {row.trained:.3f}"
        rate = "-" if row.learning_rate is None else f"{row.learning_rate:g}"
        size = "-" if row.bytes_sent is None else f"{row.bytes_sent:,}"
        scores = "-" if row.scores is None else as_text(row.scores)
        rounds.add_row(str(row.round), loss, row.personal or "-", scores, rate, size, Text(row.state))
    Console().print(facts)
    if agent_status.rounds:
        Console().print(rounds)
    if agent_status.next_command is not None:
        # No row of a table, whose wrapped cells cannot be copied.
        same_file = f" --config {quote(str(config))}" if config is not None else ""
        print(f"next: {agent_status.next_command}{same_file}")


def _opened_silo(settings: AgentSettings) -> Silo:
    from client_agent.training.silo import open_silo

    return open_silo(settings)


def _prepared_profile(folder: Path) -> Profile:
    """Return the profile in the agent's folder.

    Raises:
        WorkNeeded: there is none.
    """
    from client_agent.storage.silo_facts import read_silo_facts

    facts = read_silo_facts(folder)
    if facts is None:
        raise WorkNeeded("--prepared: the facts of this silo's model are missing")
    return facts.profile


def _old_key(expires_at: str | None, at_once: bool) -> str:
    if expires_at is not None:
        return f"the old key stays valid until {expires_at}"
    return "the old key and all earlier ones are revoked" if at_once else "the old key is no longer valid"


def _secret(token: str) -> str:
    """Return the token, read from standard input for `-` so that no process list shows it."""
    return sys.stdin.readline().strip() if token == "-" else token
