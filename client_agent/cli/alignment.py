"""The command that tests whether an alignment pack transfers a task."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from client_agent.cli.anchor_file import read_anchor_file
from client_agent.cli.console import (
    Bars,
    Config,
    Json,
    clear_errors,
    opened_settings,
    read_file,
)
from client_agent.errors import AlignmentImpossible, PlanUnusable, SettingsUnusable, Stopped
from client_agent.session import open_participant, stop_on_signal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from client_agent.rounds.participant import Participant
    from client_agent.settings import AgentSettings
    from schemas.messages.alignment import Acceptance, Direction


aligning = typer.Typer()
log = logging.getLogger(__name__)

_STARTS = {
    "right": "right P, Q",
    "zero": "zero",
    "wrong_task": "wrong task",
    "random_frames": "random frames",
}


@aligning.command("alignment-test")
def alignment_test(
    config: Config = None,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Further training steps in the receiving model, at 0.3 of the plan's learning rate.",
            show_default="50",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=2**63 - 1,
            help="Seed of the pseudo-tasks.",
            show_default="alignment.seed of the plan",
        ),
    ] = None,
    plan: Annotated[
        Path | None, typer.Option(help="Test without a coordinator: JSON file of a federation plan.")
    ] = None,
    anchors: Annotated[Path | None, typer.Option(help="With --plan: JSON file of the anchor texts.")] = None,
    store: Annotated[
        bool, typer.Option("--store", help="Store the verdict even with a non-default --steps or --seed.")
    ] = False,
    pack: Annotated[
        Path | None,
        typer.Option(help="With --plan: pack of the silo's base model.", show_default="made for the test"),
    ] = None,
    pivot_pack: Annotated[
        Path | None, typer.Option(help="With --plan: pack of the pivot.", show_default="made for the test")
    ] = None,
    as_json: Json = False,
) -> None:
    """Test the alignment pack of the silo's base model in both directions. Exit 1 if it fails.

    P and Q learn public pseudo-tasks in one model and continue in the other model. They must end better than
    three controls, each by a one-sided paired t test over the pseudo-tasks at 95 %: a start from zero, P and
    Q of a wrong task, and P and Q between random frames.

    The coordinator stores the verdict only for the default steps and seed, so that repeated trials cannot
    select a good one. --store stores the verdict of another trial, with its settings. With --plan the
    verdict is printed and not stored.
    """
    with clear_errors(), opened_settings(config) as settings, Bars() as bars:
        if plan is not None and store:
            raise SettingsUnusable("--store needs a coordinator, and --plan uses none; pass only one of them")
        if plan is not None and anchors is not None:
            tested, shared = _test_offline(settings, plan, anchors, pack, pivot_pack, steps, seed, bars)
        elif any((plan, anchors, pack, pivot_pack)):
            raise SettingsUnusable(
                "an offline test needs both --plan and --anchors; --pack and --pivot-pack need them too"
            )
        else:
            with open_participant(settings, stop=stop_on_signal()) as participant:
                tested, shared = _test_in_federation(participant, steps, seed, bars, store=store)
    print(tested.model_dump_json(indent=1)) if as_json else _show(tested, shared)
    if tested.verdict == "failed":
        raise typer.Exit(1)


def _show(tested: Acceptance, shared: Sequence[str]) -> None:
    for direction in tested.directions:
        Console().print(_table(direction, tested))
    print(f"Both packs share {','.join(shared)}")
    print(
        "passed: training in one model improves the other."
        if tested.verdict == "passed"
        else "failed: this base model should share with clients of the same base model only."
    )


def _test_in_federation(
    participant: Participant,
    steps: int | None,
    seed: int | None,
    bars: Bars,
    *,
    store: bool,
) -> tuple[Acceptance, list[str]]:
    """Test the stored packs; return the verdict and the shared (block, role). Make missing packs first."""
    from client_agent.alignment.pack import Pack
    from client_agent.alignment.transfer_test import (
        TARGET_STEPS,
        Trial,
        require_testable,
        run_transfer_test,
        sides,
    )
    from client_agent.daemon import next_round, wait_for_frames
    from schemas.wire.digests import digest_of

    session, trainer = participant.session, participant.trainer
    brief = next_round(participant)
    session.check_brief(brief)  # before a missing pack is made and sent
    alignment, base = brief.alignment, trainer.silo.base
    if alignment is None:
        raise AlignmentImpossible("this federation uses no alignment packs, so there is nothing to test")
    require_testable(base, alignment)
    wait_for_frames(participant, brief)
    client_pack, pivot_pack = (
        session.api.pack(session.federation_id, slug) for slug in (base.slug, alignment.pivot)
    )
    if client_pack is None or pivot_pack is None:
        raise AlignmentImpossible(
            "an alignment pack was removed from the coordinator during the test; repeat the command"
        )
    trial = Trial(
        brief.adapter,
        brief.training,
        session.api.anchors(session.federation_id).anchors[: alignment.anchors],
        alignment.seed if seed is None else seed,
        steps or TARGET_STEPS,
    )
    pivot = trainer.silo.model_named(alignment.pivot)
    client_side, pivot_side = sides(
        base, Pack.from_body(client_pack.body), pivot, Pack.from_body(pivot_pack.body), trial
    )
    tested = run_transfer_test(
        client_side, pivot_side, trial, pack=digest_of(client_pack.body), progress=bars, stop=trainer.stop
    )
    if store or (trial.steps, trial.seed) == (TARGET_STEPS, alignment.seed):
        session.api.put_acceptance(session.federation_id, base.slug, tested)
    else:
        log.warning("verdict: not stored (non-default steps or seed); --store stores it")
    return tested, [*client_side.frames]


def _test_offline(
    settings: AgentSettings,
    plan_file: Path,
    anchors_file: Path,
    pack_file: Path | None,
    pivot_pack_file: Path | None,
    steps: int | None,
    seed: int | None,
    bars: Bars,
) -> tuple[Acceptance, list[str]]:
    """Test packs from files, or temporary ones; return the verdict and the shared (block, role)."""
    from client_agent.alignment.fit_packs import aligned_pack, pivot_pack
    from client_agent.alignment.pack import Pack
    from client_agent.alignment.transfer_test import (
        TARGET_STEPS,
        Trial,
        require_testable,
        run_transfer_test,
        sides,
    )
    from client_agent.rounds.plan import read_plan
    from client_agent.training.silo import open_silo
    from schemas.wire.digests import digest_of

    plan = read_plan(plan_file)
    alignment = plan.alignment
    if alignment is None:
        raise PlanUnusable(f"{plan_file} has no alignment; set alignment.pivot in it")
    anchors = read_anchor_file(anchors_file)[: alignment.anchors]
    client_body = read_file(pack_file) if pack_file is not None else None
    pivot_side_pack = Pack.from_body(read_file(pivot_pack_file)) if pivot_pack_file is not None else None
    stop = stop_on_signal()
    silo = open_silo(settings)
    base = silo.base
    require_testable(base, alignment)
    pivot = silo.model_named(alignment.pivot)

    def progress(task: str, done: int, total: int) -> None:
        if stop.is_set():
            raise Stopped
        bars(task, done, total)

    if pivot_side_pack is None:
        pivot_side_pack = pivot_pack(pivot, anchors, plan.adapter, alignment, "offline", progress=progress)
    if client_body is None:
        # Packs are fitted to dense weights, and the silo's own model may be quantised.
        dense = silo.model_named(base.slug)
        fitted_pack = aligned_pack(
            dense, pivot, pivot_side_pack, anchors, plan.adapter, alignment, "offline", progress=progress
        )
        client_body = fitted_pack.to_body()
    task_seed = alignment.seed if seed is None else seed
    trial = Trial(plan.adapter, plan.training, anchors, task_seed, steps or TARGET_STEPS)
    client_side, pivot_side = sides(base, Pack.from_body(client_body), pivot, pivot_side_pack, trial)
    tested = run_transfer_test(
        client_side, pivot_side, trial, pack=digest_of(client_body), progress=bars, stop=stop.is_set
    )
    return tested, [*client_side.frames]


def _table(direction: Direction, tested: Acceptance) -> Table:
    """Build the table of one direction: per start, means over pseudo-tasks and their standard errors."""
    from schemas.maths.paired_test import spread
    from schemas.messages.alignment import CONTROLS

    def mean_and_error(values: list[float]) -> str:
        mean, error = spread(values)
        return f"{mean:.3f} ± {error:.3f}"

    learnt, _ = spread(direction.learnt.exact_match)
    tasks = len(direction.learnt.loss)
    table = Table(
        "start",
        "loss",
        "exact match",
        "lead of right P, Q",
        "p",
        "",
        title=f"{direction.source} to {direction.target}: {tested.taught} steps there (exact match "
        f"{learnt:.3f}), {tested.steps} further steps here at rate {tested.learning_rate:g}; {tasks} tasks",
        title_justify="left",
    )
    for start, ending in direction.endings.items():
        figures: list[str] = []
        if start in CONTROLS:
            lead = direction.lead_over(start)
            figures = [
                f"{lead.mean:.3f} ± {lead.error:.3f}",
                f"{lead.chance:.2g}",
                "[green]yes" if direction.beats(start) else "[red]no",
            ]
        table.add_row(
            _STARTS[start], mean_and_error(ending.loss), mean_and_error(ending.exact_match), *figures
        )
    return table
