"""What a silo does with an adapter that it has trained: export it for others' tools, and try it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Protocol

import typer

from client_agent.cli.console import Config, clear_errors, opened_settings, read_file
from client_agent.errors import AdapterUnreadable, OutputUnwritable, SettingsUnusable

if TYPE_CHECKING:
    from client_agent.rounds.checkpoints import Reopened, Variant
    from client_agent.rounds.train import Trained
    from client_agent.settings import AgentSettings
    from client_agent.training.silo import Silo
    from schemas.messages.federations import FederationPlan

adapters = typer.Typer()

Round = Annotated[
    str | None,
    typer.Option("--round", help="A round that is still on disk, or latest.", show_default="latest"),
]
File = Annotated[
    Path | None,
    typer.Option("--adapter", help="Instead of a round: what `agent train --out` wrote; needs --plan."),
]
FileOrFolder = Annotated[
    Path | None,
    typer.Option(
        "--adapter",
        help="Instead of a round: what `agent train --out` wrote, with --plan; or what export wrote.",
    ),
]
Plan = Annotated[Path | None, typer.Option(help="With --adapter FILE: the plan that it was trained under.")]
Pack = Annotated[
    Path | None, typer.Option(help="With --adapter FILE: the pack that it was trained with, if any.")
]


class _Found(Protocol):
    """An adapter whose files are there; what can be wrong with them is said before a model is loaded."""

    def in_place(self, silo: Silo) -> AbstractContextManager[Reopened]:
        """Put it around the silo's base model."""


@dataclass(frozen=True, slots=True)
class _OfRound:
    """What a round of the federation left, or what the coordinator served for it."""

    home: Path
    number: int | None
    what: Variant

    def in_place(self, silo: Silo) -> AbstractContextManager[Reopened]:
        """Put it around the silo's base model."""
        from client_agent.rounds.checkpoints import adapter_of_round

        return adapter_of_round(silo, self.home, self.number, self.what)


@dataclass(frozen=True, slots=True)
class _OfFile:
    """What was trained alone, with the plan and perhaps the pack that belong to it."""

    trained: Trained
    plan: FederationPlan
    pack: bytes | None

    def in_place(self, silo: Silo) -> AbstractContextManager[Reopened]:
        """Put it around the silo's base model."""
        from client_agent.rounds.checkpoints import reopened

        return reopened(silo, self.plan, self.pack, self.trained)


def _found(
    settings: AgentSettings,
    number: str | None,
    file: Path | None,
    plan: Path | None,
    pack: Path | None,
    what: Variant = "local",
) -> _Found:
    """Find what the options ask for.

    Raises:
        SettingsUnusable: they contradict each other, or one is missing.
        NotEnrolled, NothingTrained, AdapterUnreadable, PlanUnusable, TrainedUnderAnother: it is not there, or
            cannot be what was meant.
    """
    if file is None:
        if plan is not None or pack is not None:
            raise SettingsUnusable("--plan and --pack belong to --adapter FILE; a round has its own")
        return _of_round(settings, number, what)
    _require_there(file, number)
    if file.is_dir():
        raise SettingsUnusable(f"--adapter: {file} is a folder; give a file that `tessera agent train` wrote")
    if plan is None:
        raise SettingsUnusable("--adapter needs --plan: the plan that it was trained under")
    if what == "personalised":
        raise SettingsUnusable("--what personalised is of a round; what was trained alone is local")
    from client_agent.rounds.checkpoints import read_trained
    from client_agent.rounds.plan import read_plan
    from client_agent.rounds.standalone import require_frames

    trained_under = read_plan(plan)
    body = read_file(pack) if pack is not None else None
    require_frames(trained_under, body)
    return _OfFile(read_trained(file, trained_under), trained_under, body)


def _of_round(settings: AgentSettings, number: str | None, what: Variant) -> _OfRound:
    from client_agent.identity.membership import read_membership
    from client_agent.rounds.checkpoints import round_with

    if number not in (None, "latest") and not number.isdecimal():
        raise SettingsUnusable(f"--round must be a number or latest, not {number!r}")
    wanted = int(number) if number is not None and number != "latest" else None
    home = settings.folder / read_membership(settings.folder).federation_id
    round_with(home, wanted, what)
    return _OfRound(home, wanted, what)


def _require_there(adapter: Path, number: str | None) -> None:
    if number is not None:
        raise SettingsUnusable("--round and --adapter are two different adapters; give one of them")
    if not adapter.exists():
        raise AdapterUnreadable(
            f"--adapter: there is no {adapter}; give a file that `tessera agent train --out` wrote, or a "
            "folder that `tessera agent export` wrote"
        )


@adapters.command()
def export(
    out: Annotated[Path, typer.Option(help="The folder to write adapter_config.json and tensors into.")],
    config: Config = None,
    number: Round = None,
    what: Annotated[
        Literal["local", "personalised"],
        typer.Option(help="What was trained and scored, or what the coordinator served."),
    ] = "local",
    adapter: File = None,
    plan: Plan = None,
    pack: Pack = None,
) -> None:
    """Write a standard PEFT LoRA checkpoint, which public peft loads without Tessera.

    It does what was scored on the base model in the precision that it was trained in, which is said.
    """
    with clear_errors(), opened_settings(config) as settings:
        in_the_way = next((path for path in (out, *out.parents) if path.exists() and not path.is_dir()), None)
        if in_the_way is not None:
            raise OutputUnwritable(
                f"--out: {in_the_way} is no folder; give a folder, or the name of a new one"
            )
        found = _found(settings, number, adapter, plan, pack, what)
        from client_agent.adapters.peft_export import precision_note, write_checkpoint
        from client_agent.training.silo import open_silo

        silo = open_silo(settings)
        with found.in_place(silo) as (placed, origin):
            factors = placed.as_lora()
            write_checkpoint(out, factors, silo.base.model, _name_for_others(settings.model))
        values = sum(one.A.size + one.B.size for one in factors.values())
        print(f"{out}: LoRA of {len(factors)} modules, {values} values, for {settings.model}")
        print(precision_note(origin.precision if origin is not None else None))


@adapters.command()
def generate(
    prompt: Annotated[str, typer.Option(help="What to continue, written as the prompts of the data are.")],
    config: Config = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Where to stop at the latest.")] = 128,
    number: Round = None,
    base: Annotated[bool, typer.Option("--base", help="Ask the base model without any adapter.")] = False,
    adapter: FileOrFolder = None,
    plan: Plan = None,
    pack: Pack = None,
) -> None:
    """Let the silo's model answer, with the adapter that was trained last: the likeliest token each time.

    If the silo's data are chats, the prompt is the user's turn.
    """
    with clear_errors(), opened_settings(config) as settings:
        if base and any(option is not None for option in (number, adapter, plan, pack)):
            raise SettingsUnusable("--base asks the model without any adapter; leave it out, or the others")
        checkpoint = _checkpoint(number, adapter, plan, pack)
        found = None if base or checkpoint else _found(settings, number, adapter, plan, pack)
        from client_agent.model.examples import encode_prompt
        from client_agent.model.generation import completion
        from client_agent.training.silo import open_silo

        silo = open_silo(settings)
        chat = bool(silo.data.train[0].turns)
        ids = encode_prompt(prompt, silo.base.tokenizer, chat=chat)
        with _answering(silo, found, checkpoint):
            for text in completion(silo.base, ids, max_new_tokens=max_new_tokens):
                print(text, end="", flush=True)
        print()


def _checkpoint(
    number: str | None, adapter: Path | None, plan: Path | None, pack: Path | None
) -> Path | None:
    """Give --adapter if it is a checkpoint's folder, which needs nothing beside it."""
    if adapter is None or not adapter.is_dir():
        return None
    from client_agent.adapters.peft_export import require_checkpoint

    _require_there(adapter, number)
    if plan is not None or pack is not None:
        raise SettingsUnusable(
            f"--plan and --pack belong to a file that `tessera agent train` wrote, and {adapter} is a folder"
        )
    require_checkpoint(adapter)
    return adapter


def _answering(silo: Silo, found: _Found | None, checkpoint: Path | None) -> AbstractContextManager[object]:
    from client_agent.adapters.peft_export import checkpoint_in_place

    if checkpoint is not None:
        return checkpoint_in_place(silo.base, checkpoint)
    return found.in_place(silo) if found is not None else nullcontext()


def _name_for_others(model: str) -> str:
    """Name the base model as it is found from any folder: a path in full, a hub id as it is."""
    return str(Path(model).resolve()) if Path(model).is_dir() else model
