"""Commands for alignment: anchors, packs and the transfer test."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from client_agent.cli.console import Bars, Config, Json, be_quiet, clear_errors, opened_settings, read_file
from client_agent.errors import AlignmentImpossible, OutputUnwritable, PlanUnusable, SettingsUnusable, Stopped
from client_agent.session import open_participant, stop_on_signal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from client_agent.rounds.participant import Participant
    from client_agent.settings import AgentSettings
    from schemas.messages.alignment import Acceptance, Anchor, Direction


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
            help="Further steps in the model that was not taught, at 0.3 of the plan's learning rate.",
            show_default="50",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0, max=2**63 - 1, help="Draws the pseudo-tasks; the plan's alignment.seed if not given."
        ),
    ] = None,
    plan: Annotated[
        Path | None, typer.Option(help="Without a coordinator: a federation plan as JSON.")
    ] = None,
    anchors: Annotated[Path | None, typer.Option(help="With --plan: the anchor texts as JSON.")] = None,
    store: Annotated[
        bool, typer.Option("--store", help="Store the verdict also with another --steps or --seed.")
    ] = False,
    pack: Annotated[
        Path | None, typer.Option(help="With --plan: our base model's pack; made if not given.")
    ] = None,
    pivot_pack: Annotated[
        Path | None, typer.Option(help="With --plan: the pivot's pack; made if not given.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Test our base model's alignment pack in both directions; exit 1 if it fails.

    P and Q are taught public pseudo-tasks in one model and go on learning in the other. They must end better
    than zero, than those of a wrong task and than those between random frames, each by a one-sided paired t
    test over the pseudo-tasks at 95 %.

    The coordinator stores the verdict if steps and seed are the default ones, so that nobody tries until one
    suits; --store stores another one, with its settings. With --plan it is printed and stored nowhere.
    """
    with clear_errors(), opened_settings(config) as settings, Bars() as bars:
        if plan is not None and store:
            raise SettingsUnusable("--store is for a federation's coordinator; with --plan there is none")
        if plan is not None and anchors is not None:
            tested, shared = _offline(settings, plan, anchors, pack, pivot_pack, steps, seed, bars)
        elif any((plan, anchors, pack, pivot_pack)):
            raise SettingsUnusable("--plan and --anchors go together, --pack and --pivot-pack with them")
        else:
            with open_participant(settings, stop=stop_on_signal()) as participant:
                tested, shared = _in_federation(participant, steps, seed, bars, store=store)
    print(tested.model_dump_json(indent=1)) if as_json else _show(tested, shared)
    if tested.verdict == "failed":
        raise typer.Exit(1)


def _show(tested: Acceptance, shared: Sequence[str]) -> None:
    for direction in tested.directions:
        Console().print(_table(direction, tested))
    print(f"Both packs share {','.join(shared)}")
    print(
        "passed: what one model learns helps the other."
        if tested.verdict == "passed"
        else "failed: this base model should share with the identical base model only."
    )


def _in_federation(
    participant: Participant,
    steps: int | None,
    seed: int | None,
    bars: Bars,
    *,
    store: bool,
) -> tuple[Acceptance, list[str]]:
    """Test the stored packs, and name what both share; one that nobody has made yet is made first."""
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
    alignment, own = brief.alignment, trainer.silo.base
    if alignment is None:
        raise AlignmentImpossible("this federation aligns no base models: there is nothing to test")
    require_testable(own, alignment)
    wait_for_frames(participant, brief)
    ours, theirs = (session.api.pack(session.federation_id, slug) for slug in (own.slug, alignment.pivot))
    if ours is None or theirs is None:
        raise AlignmentImpossible("an alignment pack is not stored any more; try again")
    trial = Trial(
        brief.adapter,
        brief.training,
        session.api.anchors(session.federation_id).anchors[: alignment.anchors],
        alignment.seed if seed is None else seed,
        steps or TARGET_STEPS,
    )
    pivot = trainer.silo.model_named(alignment.pivot)
    one, other = sides(own, Pack.from_body(ours.body), pivot, Pack.from_body(theirs.body), trial)
    tested = run_transfer_test(one, other, trial, pack=digest_of(ours.body), progress=bars, stop=trainer.stop)
    if store or (trial.steps, trial.seed) == (TARGET_STEPS, alignment.seed):
        session.api.put_acceptance(session.federation_id, own.slug, tested)
    else:
        log.warning("the verdict is not stored: steps or seed are not the default ones; --store stores it")
    return tested, [*one.frames]


def _offline(
    settings: AgentSettings,
    plan_file: Path,
    anchors_file: Path,
    pack_file: Path | None,
    pivot_pack_file: Path | None,
    steps: int | None,
    seed: int | None,
    bars: Bars,
) -> tuple[Acceptance, list[str]]:
    """Test packs that are files, or that are made here and thrown away; name what both share."""
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
        raise PlanUnusable(f"{plan_file} has no alignment: name a pivot in it")
    anchors = _anchors(anchors_file)[: alignment.anchors]
    of_own = read_file(pack_file) if pack_file is not None else None
    of_pivot = Pack.from_body(read_file(pivot_pack_file)) if pivot_pack_file is not None else None
    stop = stop_on_signal()
    silo = open_silo(settings)
    own = silo.base
    require_testable(own, alignment)
    pivot = silo.model_named(alignment.pivot)

    def progress(what: str, done: int, total: int) -> None:
        if stop.is_set():
            raise Stopped
        bars(what, done, total)

    if of_pivot is None:
        of_pivot = pivot_pack(pivot, anchors, plan.adapter, alignment, "offline", progress=progress)
    if of_own is None:
        dense = silo.model_named(own.slug)
        made = aligned_pack(
            dense, pivot, of_pivot, anchors, plan.adapter, alignment, "offline", progress=progress
        )
        of_own = made.to_body()
    drawn_by = alignment.seed if seed is None else seed
    trial = Trial(plan.adapter, plan.training, anchors, drawn_by, steps or TARGET_STEPS)
    one, other = sides(own, Pack.from_body(of_own), pivot, of_pivot, trial)
    tested = run_transfer_test(one, other, trial, pack=digest_of(of_own), progress=bars, stop=stop.is_set)
    return tested, [*one.frames]


def _anchors(file: Path) -> list[Anchor]:
    from pydantic import ValidationError

    from schemas.messages.alignment import Anchors

    try:
        return Anchors.model_validate_json(read_file(file)).anchors
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(map(str, fault["loc"]))
        raise PlanUnusable(f"{file} holds no anchor texts: {place}: {fault['msg']}") from error


def _table(direction: Direction, tested: Acceptance) -> Table:
    """Lay out how every start ended; means over pseudo-tasks with their standard errors."""
    from schemas.maths.paired_test import spread
    from schemas.messages.alignment import CONTROLS

    def shown(values: list[float]) -> str:
        mean, error = spread(values)
        return f"{mean:.3f} ± {error:.3f}"

    learnt, _ = spread(direction.learnt.exact_match)
    tasks = len(direction.learnt.loss)
    table = Table(
        "start",
        "loss",
        "exact match",
        "right P, Q ahead by",
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
        table.add_row(_STARTS[start], shown(ending.loss), shown(ending.exact_match), *figures)
    return table


anchors = typer.Typer()


@anchors.command("write-anchors")
def write_anchors(
    pivot: Annotated[str, typer.Argument(help="The pivot: a folder or a hub id.")],
    out: Annotated[Path, typer.Option(help="The JSON file to write, for `tessera anchors put`.")],
    count: Annotated[
        int, typer.Option(min=1, max=100_000, help="How many texts; the plan's alignment.anchors.")
    ] = 1024,
    max_tokens: Annotated[
        int, typer.Option(min=4, max=512, help="How long a text may be that the model does not end.")
    ] = 32,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Draws the texts.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:<n>.")] = "auto",
) -> None:
    """Have the pivot write the texts on which base models are aligned, where nobody may give any.

    Nothing is read but the pivot's weights. How good the texts are, `tessera agent alignment-test` tells: a
    model that was taught to answer only, and never to write a question, writes none that help.
    """
    with clear_errors(), Bars() as bars:
        be_quiet()
        if out.exists() or not out.absolute().parent.is_dir():
            raise OutputUnwritable(
                f"--out: {out} exists already, or its folder does not; give the name of a new file"
            )
        from client_agent.alignment.generate_anchors import generate_anchors
        from client_agent.model.loading import load_base_model
        from client_agent.storage.files import write_durably
        from client_agent.training.silo import device_named
        from schemas.messages.alignment import Anchors

        model = load_base_model(pivot, device=device_named(device))
        texts = generate_anchors(
            model,
            count,
            seed=seed,
            max_tokens=max_tokens,
            progress=lambda done: bars("texts", done, count),
        )
        write_durably(out, Anchors(anchors=texts).model_dump_json(indent=1).encode())
    print(f"{out}: {count} texts that {model.slug} wrote, like {texts[0].prompt!r} + {texts[0].answer!r}")
