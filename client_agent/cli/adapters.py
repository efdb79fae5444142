"""What a silo does with an adapter that it has trained: export it for others' tools, and try it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from client_agent.cli.opening import Config, clear_errors, opened_settings, read_pack
from client_agent.errors import OutputUnwritable, SettingsUnusable

if TYPE_CHECKING:
    from client_agent.model.adapter import Adapter
    from client_agent.settings import AgentSettings
    from client_agent.silo import Silo

adapters = typer.Typer()

Round = Annotated[str, typer.Option("--round", help="A round that is still on disk, or latest.")]
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
Plan = Annotated[Path | None, typer.Option(help="With --adapter: the plan that it was trained under.")]
Pack = Annotated[Path | None, typer.Option(help="With --adapter: the pack that it was trained with, if any.")]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Which adapter: a round's, or a file's with the plan and perhaps the pack that belong to it."""

    round: str
    file: Path | None
    plan: Path | None
    pack: Path | None

    @contextmanager
    def in_place(
        self, settings: AgentSettings, silo: Silo, what: Literal["local", "personalised"] = "local"
    ) -> Iterator[Adapter]:
        """Put it around the silo's base model."""
        from client_agent.alone import read_plan, reopened
        from client_agent.membership import read_membership
        from client_agent.reopening import adapter_of_round

        if self.file is None:
            home = settings.folder / read_membership(settings.folder).federation_id
            with adapter_of_round(silo, home, self._number(), what) as adapter:
                yield adapter
            return
        if self.plan is None:
            raise SettingsUnusable("--adapter needs --plan: the plan that it was trained under")
        if what == "personalised":
            raise SettingsUnusable("--what personalised is of a round; what was trained alone is local")
        pack = read_pack(self.pack) if self.pack is not None else None
        with reopened(silo, read_plan(self.plan), pack, self.file) as adapter:
            yield adapter

    def _number(self) -> int | None:
        if self.round == "latest":
            return None
        if not self.round.isdecimal():
            raise SettingsUnusable(f"--round must be a number or latest, not {self.round!r}")
        return int(self.round)


@adapters.command()
def export(
    out: Annotated[Path, typer.Option(help="The folder to write adapter_config.json and tensors into.")],
    config: Config = None,
    number: Round = "latest",
    what: Annotated[
        Literal["local", "personalised"],
        typer.Option(help="What was trained and scored, or what the coordinator served."),
    ] = "local",
    adapter: File = None,
    plan: Plan = None,
    pack: Pack = None,
) -> None:
    """Write a standard PEFT LoRA checkpoint, which public peft loads without Tessera."""
    with clear_errors(), opened_settings(config) as settings:
        from client_agent.model.export import write_checkpoint
        from client_agent.silo import open_silo

        in_the_way = next((path for path in (out, *out.parents) if path.exists() and not path.is_dir()), None)
        if in_the_way is not None:
            raise OutputUnwritable(
                f"--out: {in_the_way} is no folder; give a folder, or the name of a new one"
            )
        silo = open_silo(settings)
        with _Wanted(number, adapter, plan, pack).in_place(settings, silo, what) as found:
            factors = found.as_lora()
            write_checkpoint(out, factors, silo.base.model, _name_for_others(settings.model))
        values = sum(one.A.size + one.B.size for one in factors.values())
        print(f"{out}: LoRA of {len(factors)} modules, {values} values, for {settings.model}")


@adapters.command()
def generate(
    prompt: Annotated[str, typer.Option(help="What to continue, written as the prompts of the data are.")],
    config: Config = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Where to stop at the latest.")] = 128,
    number: Round = "latest",
    base: Annotated[bool, typer.Option("--base", help="Ask the base model without any adapter.")] = False,
    adapter: FileOrFolder = None,
    plan: Plan = None,
    pack: Pack = None,
) -> None:
    """Let the silo's model answer, with the adapter that was trained last: the likeliest token each time.

    If the silo's data are chats, the prompt is the user's turn.
    """
    with clear_errors(), opened_settings(config) as settings:
        from client_agent.model.examples import encode_prompt
        from client_agent.model.generation import completion
        from client_agent.silo import open_silo

        silo = open_silo(settings)
        chat = bool(silo.data.train[0].turns)
        ids = encode_prompt(prompt, silo.base.tokenizer, chat=chat)
        with _answering(settings, silo, _Wanted(number, adapter, plan, pack), bare=base):
            for text in completion(silo.base, ids, max_new_tokens=max_new_tokens):
                print(text, end="", flush=True)
        print()


def _answering(
    settings: AgentSettings, silo: Silo, wanted: _Wanted, *, bare: bool
) -> AbstractContextManager[object]:
    from client_agent.model.export import checkpoint_in_place

    if bare:
        return nullcontext()
    if wanted.file is not None and wanted.file.is_dir():
        return checkpoint_in_place(silo.base, wanted.file)
    return wanted.in_place(settings, silo)


def _name_for_others(model: str) -> str:
    """Name the base model as it is found from any folder: a path in full, a hub id as it is."""
    return str(Path(model).resolve()) if Path(model).is_dir() else model
