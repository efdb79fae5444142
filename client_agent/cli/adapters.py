"""Select a trained adapter on disk, and generate text with it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Protocol

import typer

from client_agent.cli.console import Config, clear_errors, opened_settings, read_file
from client_agent.errors import AdapterUnreadable, SettingsUnusable

if TYPE_CHECKING:
    from client_agent.export.facts import TrainingFacts
    from client_agent.rounds.checkpoints import Reopened, Variant
    from client_agent.rounds.train import Trained
    from client_agent.settings import AgentSettings
    from client_agent.training.silo import Silo
    from schemas.messages.federations import FederationPlan

adapters = typer.Typer()

Round = Annotated[
    str | None,
    typer.Option("--round", help="The number of a round still on disk, or latest.", show_default="latest"),
]
File = Annotated[
    Path | None,
    typer.Option("--adapter", help="Instead of a round: a file of `agent train --out`; needs --plan."),
]
Which = Annotated[
    Literal["kept", "served", "trained"],
    typer.Option(
        "--variant",
        help="The final weights, or without them the better of served and trained; the weights that the "
        "round began with; or those after the local steps.",
    ),
]
FileOrFolder = Annotated[
    Path | None,
    typer.Option(
        "--adapter",
        help="Instead of a round: a file of `agent train --out`, with --plan; or a folder of `agent export`.",
    ),
]
Plan = Annotated[Path | None, typer.Option(help="With --adapter FILE: the federation plan used in training.")]
Pack = Annotated[
    Path | None, typer.Option(help="With --adapter FILE: the alignment pack used in training, if any.")
]


class _AdapterSource(Protocol):
    """An adapter on disk, validated before the base model is loaded."""

    def attach(self, silo: Silo) -> AbstractContextManager[Reopened]: ...

    def facts(self) -> TrainingFacts: ...


@dataclass(frozen=True, slots=True)
class _RoundAdapter:
    """The adapter of a round, or the federation's final weights."""

    home: Path
    number: int | None
    variant: Variant

    def attach(self, silo: Silo) -> AbstractContextManager[Reopened]:
        from client_agent.rounds.checkpoints import adapter_of_round

        return adapter_of_round(silo, self.home, self.number, self.variant)

    def facts(self) -> TrainingFacts:
        from client_agent.export.facts import facts_of_round

        return facts_of_round(self.home, self.number, self.variant)


@dataclass(frozen=True, slots=True)
class _FileAdapter:
    """An adapter of `agent train`, with its plan and alignment pack."""

    trained: Trained
    plan: FederationPlan
    pack: bytes | None
    variant: Variant

    def attach(self, silo: Silo) -> AbstractContextManager[Reopened]:
        from client_agent.rounds.checkpoints import reopened

        return reopened(silo, self.plan, self.pack, self.trained, self.variant)

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
) -> _AdapterSource:
    """Return the adapter that the options select.

    Raises:
        SettingsUnusable: the options contradict each other, or one is missing.
        NotEnrolled, NothingTrained, AdapterUnreadable, PlanUnusable, ProvenanceMismatch: the adapter does not
            exist, or does not fit the plan.
    """
    if file is None:
        if plan is not None or pack is not None:
            raise SettingsUnusable(
                "--plan and --pack belong to --adapter FILE, and a round has its own; leave them out"
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
    from client_agent.identity.membership import read_membership
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


@adapters.command()
def generate(
    prompt: Annotated[str, typer.Option(help="The prompt, in the form of the prompts in the silo's data.")],
    config: Config = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="The most tokens to generate.")] = 128,
    number: Round = None,
    variant: Which = "kept",
    base: Annotated[bool, typer.Option("--base", help="Use the base model without an adapter.")] = False,
    adapter: FileOrFolder = None,
    plan: Plan = None,
    pack: Pack = None,
) -> None:
    """Generate text with the silo's model and its latest kept adapter, by greedy decoding.

    If the silo's data are chats, the prompt is the user's turn.
    """
    with clear_errors(), opened_settings(config) as settings:
        if base and any(option is not None for option in (number, adapter, plan, pack)):
            raise SettingsUnusable(
                "--base uses no adapter; pass either --base or the options that select an adapter"
            )
        checkpoint = _checkpoint(number, adapter, plan, pack)
        unused = base or checkpoint is not None
        source = None if unused else adapter_source(settings, number, adapter, plan, pack, variant)
        from client_agent.model.examples import encode_prompt
        from client_agent.model.generation import completion
        from client_agent.training.silo import open_silo

        silo = open_silo(settings)
        chat = bool(silo.data.train[0].turns)
        ids = encode_prompt(prompt, silo.base.tokenizer, chat=chat)
        with _attached(silo, source, checkpoint):
            for text in completion(silo.base, ids, max_new_tokens=max_new_tokens):
                print(text, end="", flush=True)
        print()


def _checkpoint(
    number: str | None, adapter: Path | None, plan: Path | None, pack: Path | None
) -> Path | None:
    """Return --adapter if it is the folder of a PEFT checkpoint, which needs no plan and no pack."""
    if adapter is None or not adapter.is_dir():
        return None
    from client_agent.adapters.peft_export import require_checkpoint

    _require_exists(adapter, number)
    if plan is not None or pack is not None:
        raise SettingsUnusable(
            f"--plan and --pack belong to a file of `tessera agent train`, and {adapter} is a folder; leave "
            "them out"
        )
    require_checkpoint(adapter)
    return adapter


def _attached(
    silo: Silo, source: _AdapterSource | None, checkpoint: Path | None
) -> AbstractContextManager[object]:
    from client_agent.adapters.peft_export import checkpoint_in_place

    if checkpoint is not None:
        return checkpoint_in_place(silo.base, checkpoint)
    return source.attach(silo) if source is not None else nullcontext()
