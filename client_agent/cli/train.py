"""Train in one silo without a federation: the plan's adapter, or a bank of experts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from client_agent.cli.anchor_file import read_anchor_file
from client_agent.cli.console import Config, Json, clear_errors, opened_settings, read_file
from client_agent.errors import SettingsUnusable
from client_agent.session import alone_trackers, stop_on_signal
from client_agent.torchrun import torchrun_rank
from schemas.user_files import require_writable_file

training = typer.Typer()


@training.command()
def train(
    plan: Annotated[
        Path, typer.Option(help="JSON file of a federation plan, as for `tessera federation create`.")
    ],
    config: Config = None,
    pack: Annotated[Path | None, typer.Option(help="Alignment pack with the frames of P and Q.")] = None,
    anchors: Annotated[
        Path | None, typer.Option(help="JSON file of public texts, for a plan with training.anchor_pull.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File for the trained adapter.")] = None,
    experts: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Train a bank: a shared adapter and this number of specialists, chosen by probe examples.",
        ),
    ] = None,
    top_m: Annotated[
        int,
        typer.Option(
            min=2,
            help="With --experts: number of experts that act, the shared one included. Above 2, a router "
            "weighs them by token.",
        ),
    ] = 2,
    as_json: Json = False,
) -> None:
    """Train without a federation, in the steps and rounds of a plan, as the baseline of this silo."""
    with clear_errors(), opened_settings(config) as settings:
        _check_options(out, experts, top_m)  # before torch is imported, which takes seconds
        body = read_file(pack) if pack is not None else None
        texts = read_anchor_file(anchors) if anchors is not None else []

        from client_agent.agent_entries import RATES
        from client_agent.anchor_pull.part import NoAnchors
        from client_agent.experts.part import bank_alone
        from client_agent.rounds.plan import read_plan
        from client_agent.rounds.standalone import require_frames, train_alone
        from client_agent.storage.files import write_durably
        from client_agent.storage.rate_store import RateStore
        from client_agent.training.silo import open_silo
        from schemas.messages.scores import LOSS, as_text

        stop = stop_on_signal()
        planned = read_plan(plan)
        require_frames(planned, body)
        if planned.training.anchor_pull and not texts:
            raise NoAnchors
        parts = (bank_alone(planned, experts, top_m),) if experts is not None else ()
        results = []
        rates = RateStore(settings.folder / RATES)
        with alone_trackers(settings) as trackers:
            silo = open_silo(settings)
            for trained in train_alone(
                silo, planned, body, stop.is_set, rates, settings.folder, parts, trackers, texts
            ):
                results.append(trained)
                if out is not None:
                    # After every round, so that a stop loses one round at most.
                    write_durably(out, trained.to_bytes())
                if not as_json:
                    scores = trained.scores
                    print(
                        f"round {len(results)}: loss {scores.served[LOSS].value:.3f} -> "
                        f"{scores.trained[LOSS].value:.3f}, rate {trained.learning_rate:g}, "
                        f"{scores.kept} kept: {as_text(scores.kept_scores)}"
                    )
        if as_json:
            print(json.dumps([trained.scores.model_dump() for trained in results]))


def _check_options(out: Path | None, experts: int | None, top_m: int) -> None:
    if out is not None:
        require_writable_file(out, "--out")
    if torchrun_rank() is not None:
        raise SettingsUnusable(
            "torchrun divides the training of `tessera agent run` and `work` only; run `train` without it"
        )
    if top_m > (experts or 1) + 1:
        raise SettingsUnusable(f"--top-m {top_m} needs --experts {top_m - 1} or more")
