"""Commands of a silo whose training machine has no network: sync, work."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from client_agent.cli.console import Config, clear_errors, opened_settings
from client_agent.errors import Stopped
from client_agent.session import StopFlag, open_offline, open_sync, stop_on_signal, with_model
from client_agent.torchrun import follows, led

if TYPE_CHECKING:
    from client_agent.rounds.pending_work import PendingWork
    from client_agent.settings import AgentSettings
    from client_agent.training.ranks import Leader

offline = typer.Typer()

_AGAIN = 75
"""EX_TEMPFAIL: nothing failed, and the same command is to be called again."""


@offline.command()
def sync(
    config: Config = None,
    until_work: Annotated[
        bool, typer.Option("--until-work", help="Wait until there is work for `tessera agent work`.")
    ] = False,
    wait: Annotated[
        float | None,
        typer.Option(min=0, help="Largest number of seconds to wait for work.", show_default=False),
    ] = None,
) -> None:
    """Exchange files with the coordinator for `tessera agent work`; needs no model, no GPU and no torch.

    Sends finished updates and scores, and joins the next round. Safe to stop and to repeat. With --until-work
    or --wait, exit 75 if there is no work.

    Example: `tessera agent sync --config silo.toml --wait 600`
    """
    waits = until_work or wait is not None
    with clear_errors(), opened_settings(config) as settings:
        from client_agent.sync import synchronise

        flag = stop_on_signal(wait)
        try:
            with open_sync(settings, flag) as client:
                outcome = synchronise(client, waits=waits)
        except Stopped:
            print(
                "no work for `tessera agent work` yet; run `tessera agent sync` again later", file=sys.stderr
            )
            raise typer.Exit(_AGAIN) from None
        print(outcome.reason)
        if outcome.next == "work":
            print("next: tessera agent work")
        elif waits:
            raise typer.Exit(_AGAIN)


@offline.command()
def work(
    config: Config = None,
    prepare: Annotated[
        bool,
        typer.Option(
            "--prepare",
            help="Only check the model and data, and store the facts that `tessera agent sync` and "
            "`tessera agent enrol --prepared` need.",
        ),
    ] = False,
    time: Annotated[
        float | None,
        typer.Option(min=1, help="Seconds after which to store a checkpoint and stop.", show_default=False),
    ] = None,
) -> None:
    """Train, sign and encode the round that `tessera agent sync` fetched; needs no network.

    Ends at once, without loading a model, if there is no work. Exit 75 if the command was stopped, or --time
    is over: the same command resumes.
    """
    with clear_errors(), opened_settings(config) as settings:
        from client_agent.identity.agent_folder import exclusive

        # Before the folder is locked, which rank 0 does.
        if follows(settings):
            return
        flag = stop_on_signal(time)
        try:
            with led(settings) as (settings, ranks), exclusive(settings.folder):
                _work(settings, flag, ranks, prepare=prepare)
        except Stopped:
            print("stopped; run `tessera agent work` again to resume", file=sys.stderr)
            raise typer.Exit(_AGAIN) from None


def _work(settings: AgentSettings, flag: StopFlag, ranks: Leader | None, *, prepare: bool) -> None:
    from client_agent.identity.agent_folder import is_enrolled, read_membership

    if prepare and not is_enrolled(settings.folder):
        from client_agent.offline_work import store_facts
        from client_agent.training.silo import open_silo

        store_facts(open_silo(settings), settings.folder)
        print("next: tessera agent enrol --prepared")
        return
    from client_agent.storage.round_folder import awaits_exchange

    if awaits_exchange(settings.folder / read_membership(settings.folder).federation_id):
        _print_idle(None)
        return
    with open_offline(settings, flag) as client:
        from client_agent.rounds.pending_work import pending_work

        pending = pending_work(client)
        if pending is None or (prepare and pending.task != "prepare"):
            _print_idle(pending)
            return
        print(pending.reason)
        from client_agent.offline_work import do_work

        do_work(with_model(client, settings, flag, ranks), pending)
        print("next: tessera agent sync")


def _print_idle(pending: PendingWork | None) -> None:
    print("nothing to do" if pending is None else f"nothing to prepare; {pending.reason}")
    print(f"next: tessera agent {'sync' if pending is None else 'work'}")
