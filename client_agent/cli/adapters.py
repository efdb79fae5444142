"""Options that select a trained adapter on disk."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Protocol

import typer

from client_agent.cli.console import read_file
from client_agent.errors import AdapterUnreadable, SettingsUnusable

if TYPE_CHECKING:
    from client_agent.export.facts import TrainingFacts
    from client_agent.rounds.checkpoints import AdapterWithOrigin, Variant
    from client_agent.rounds.training_result import TrainingResult
    from client_agent.settings import AgentSettings
    from client_agent.training.silo import Silo
    from schemas.messages.federations import FederationPlan

Round = Annotated[
    str | None,
    typer.Option(
        "--round", help="Number of a round whose files are still on disk, or latest.", show_default="latest"
    ),
]
Revision = Annotated[
    int | None,
    typer.Option(
        "--revision",
        min=1,
        help="In place of a round: number of a revision of the kept state; `agent history` lists them.",
    ),
]
File = Annotated[
    Path | None,
    typer.Option(
        "--adapter", help="In place of a round: a file that `agent train --out` wrote; needs --plan."
    ),
]
Which = Annotated[
    Literal["kept", "served", "trained"],
    typer.Option(
        "--variant",
        help="`kept`: the final weights, or before the end the better of the other two. `served`: the "
        "weights at the start of the round. `trained`: the weights after the local steps.",
    ),
]
FileOrFolder = Annotated[
    Path | None,
    typer.Option(
        "--adapter",
        help="In place of a round: a file of `agent train --out`, with --plan, or a folder of `agent "
        "export`.",
    ),
]
Plan = Annotated[Path | None, typer.Option(help="With --adapter FILE: the federation plan used in training.")]
Pack = Annotated[
    Path | None, typer.Option(help="With --adapter FILE: the alignment pack used in training, if any.")
]


class _AdapterSource(Protocol):
    """An adapter on disk, validated before the base model is loaded."""

    def attach(self, silo: Silo) -> AbstractContextManager[AdapterWithOrigin]: ...

    def facts(self) -> TrainingFacts: ...


@dataclass(frozen=True, slots=True)
class _RoundAdapter:
    """The adapter of a round, or the federation's final weights."""

    home: Path
    number: int | None
    variant: Variant

    def attach(self, silo: Silo) -> AbstractContextManager[AdapterWithOrigin]:
        from client_agent.rounds.checkpoints import adapter_of_round

        return adapter_of_round(silo, self.home, self.number, self.variant)

    def facts(self) -> TrainingFacts:
        from client_agent.export.facts import facts_of_round

        return facts_of_round(self.home, self.number, self.variant)


@dataclass(frozen=True, slots=True)
class _FileAdapter:
    """An adapter of `agent train`, with its plan and alignment pack."""

    trained: TrainingResult
    plan: FederationPlan
    pack: bytes | None
    variant: Variant

    def attach(self, silo: Silo) -> AbstractContextManager[AdapterWithOrigin]:
        from client_agent.experts.part import parts_of_file
        from client_agent.rounds.checkpoints import reopened

        parts = parts_of_file(self.trained)
        return reopened(silo, self.plan, self.pack, self.trained, self.variant, parts)

    def facts(self) -> TrainingFacts:
        from client_agent.export.facts import facts_of_file

        return facts_of_file(self.trained, self.plan, self.variant)


def adapter_source(
    settings: AgentSettings,
    number: str | None,
    file: Path | None,
    plan: Path | None,
    pack: Path | None,
    variant: Variant,
    revision: int | None = None,
) -> _AdapterSource:
    """Return the adapter that the options select.

    Raises:
        SettingsUnusable: the options contradict each other, or one is missing.
        NotEnrolled, NothingTrained, RevisionMissing, AdapterUnreadable, PlanUnusable, ProvenanceMismatch: the
            adapter does not exist, or does not fit the plan.
    """
    if revision is not None:
        if variant != "kept" or any(option is not None for option in (number, file, plan, pack)):
            raise SettingsUnusable(
                "--revision selects one kept state; leave out --round, --variant, --adapter, --plan and "
                "--pack"
            )
        from client_agent.revisions.push import revision_adapter

        return revision_adapter(settings.folder, revision)
    if file is None:
        if plan is not None or pack is not None:
            raise SettingsUnusable(
                "--plan and --pack belong to --adapter FILE, and a round has its own; leave out both options"
            )
        return _round_adapter(settings, number, variant)
    _require_exists(file, number)
    if file.is_dir():
        raise SettingsUnusable(f"--adapter: {file} is a folder; pass a file of `tessera agent train --out`")
    if plan is None:
        raise SettingsUnusable("--adapter FILE needs a plan; add --plan with the plan used in training")
    from client_agent.rounds.checkpoints import read_trained
    from client_agent.rounds.plan import read_plan
    from client_agent.rounds.standalone import require_frames

    trained_under = read_plan(plan)
    body = read_file(pack) if pack is not None else None
    require_frames(trained_under, body)
    return _FileAdapter(read_trained(file, trained_under), trained_under, body, variant)


def _round_adapter(settings: AgentSettings, option: str | None, variant: Variant) -> _RoundAdapter:
    from client_agent.identity.agent_folder import read_membership
    from client_agent.rounds.checkpoints import round_with

    if option not in (None, "latest") and not option.isdecimal():
        raise SettingsUnusable(f"--round must be a number or latest, not {option!r}")
    round_number = int(option) if option is not None and option != "latest" else None
    home = settings.folder / read_membership(settings.folder).federation_id
    round_with(home, round_number, variant)
    return _RoundAdapter(home, round_number, variant)


def _require_exists(adapter: Path, number: str | None) -> None:
    if number is not None:
        raise SettingsUnusable("--round and --adapter select two different adapters; pass only one of them")
    if not adapter.exists():
        raise AdapterUnreadable(
            f"--adapter: {adapter} does not exist; pass a file of `tessera agent train --out`, or a folder "
            "of `tessera agent export`"
        )
