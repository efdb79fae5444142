"""The command `tessera agent generate`: generate text with a trained adapter and its base model."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from client_agent.cli.adapters import (
    FileOrFolder,
    Pack,
    Plan,
    Revision,
    Round,
    Which,
    _AdapterSource,
    _require_exists,
    adapter_source,
)
from client_agent.cli.console import Config, Json, clear_errors, opened_settings
from client_agent.errors import SettingsUnusable

if TYPE_CHECKING:
    from client_agent.cli.conversation import Side
    from client_agent.model.generation import Answer, Decoding
    from client_agent.training.silo import Silo

generating = typer.Typer()

Temperature = Annotated[
    float,
    typer.Option(min=0.0, help="Temperature of the sampling; 0 takes the likeliest token each time."),
]
TopP = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        max=1.0,
        help="Sample from the likeliest tokens with this total probability.",
        show_default="1",
    ),
]


@generating.command()
def generate(
    prompt: Annotated[
        str | None, typer.Option(help="The prompt, in the form of the prompts in the silo's data.")
    ] = None,
    config: Config = None,
    interactive: Annotated[
        bool, typer.Option("--interactive", help="Load the model once, and read prompts until /exit.")
    ] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Also show the answer of the base model without the adapter.")
    ] = False,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Largest number of tokens of an answer.")] = 128,
    temperature: Temperature = 0.0,
    top_p: TopP = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of the sampling; the same seed repeats an answer.")
    ] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends the answer; repeatable.")] = None,
    number: Round = None,
    variant: Which = "kept",
    revision: Revision = None,
    base: Annotated[bool, typer.Option("--base", help="Use the base model without an adapter.")] = False,
    adapter: FileOrFolder = None,
    plan: Plan = None,
    pack: Pack = None,
    as_json: Json = False,
) -> None:
    """Generate text with the silo's model and its latest kept adapter.

    If the silo's data are chats, the prompt is the user's turn, and --interactive continues one chat.

    Example: `tessera agent generate --config silo.toml --prompt 'Who wrote it?' --compare`
    """
    with clear_errors(), opened_settings(config) as settings:
        selects = any(option is not None for option in (number, adapter, plan, pack, revision))
        _require_model(base=base, compare=compare, selects=selects)
        _require_prompt(prompt, interactive=interactive, as_json=as_json)
        _require_sampling(temperature, top_p, seed)
        # Options are checked before the model is loaded, which may take minutes.
        stops = _stop_texts(stop or [])
        checkpoint = _checkpoint(number, adapter, plan, pack) if revision is None else None
        unused = base or checkpoint is not None
        source = None if unused else adapter_source(settings, number, adapter, plan, pack, variant, revision)
        from client_agent.cli.conversation import Conversation, Side
        from client_agent.model.generation import Decoding
        from client_agent.training.silo import open_silo

        silo = open_silo(settings)
        # As the silo's data: an adapter that learnt plain texts answers badly to a chat.
        chat = bool(silo.data.train[0].turns)
        decoding = Decoding(max_new_tokens, temperature, 1.0 if top_p is None else top_p, seed, stops)
        sides = [Side("base model", nullcontext)] if base or compare else []
        if not base:
            sides.append(Side("adapter", lambda: _attached(silo, source, checkpoint)))
        if interactive:
            Conversation(silo.base, sides, decoding, chat=chat).run(prompt)
        elif prompt is not None:
            _answer_once(silo, sides, decoding, prompt, as_json=as_json)


def _answer_once(silo: Silo, sides: list[Side], decoding: Decoding, prompt: str, *, as_json: bool) -> None:
    from client_agent.cli.conversation import print_answer
    from client_agent.model.examples import encode_prompt
    from client_agent.model.generation import completion

    ids = encode_prompt(prompt, silo.base.tokenizer, chat=bool(silo.data.train[0].turns))
    answers: dict[str, Answer] = {}
    for side in sides:
        with side.attached():
            if as_json:
                answers[side.name] = completion(silo.base, ids, decoding)
            else:
                print_answer(silo.base, ids, decoding, heading=side.name if len(sides) > 1 else None)
    if as_json:
        listed = [
            {"model": name, "text": answer.text, "tokens": answer.tokens, "ended": answer.ended}
            for name, answer in answers.items()
        ]
        print(json.dumps({"prompt": prompt, "answers": listed}, indent=1))


def _require_model(*, base: bool, compare: bool, selects: bool) -> None:
    if base and compare:
        raise SettingsUnusable("--compare shows the base model and the adapter; leave out --base")
    if base and selects:
        raise SettingsUnusable(
            "--base uses no adapter; pass either --base or the options that select an adapter"
        )


def _require_prompt(prompt: str | None, *, interactive: bool, as_json: bool) -> None:
    if prompt is None and not interactive:
        raise SettingsUnusable("a prompt is missing; pass --prompt TEXT, or --interactive to type prompts")
    if interactive and as_json:
        raise SettingsUnusable("--json prints the answers to one --prompt; leave out --interactive")


def _require_sampling(temperature: float, top_p: float | None, seed: int | None) -> None:
    if temperature == 0 and (top_p is not None or seed is not None):
        raise SettingsUnusable(
            "--top-p and --seed change nothing without sampling; add a --temperature above 0, such as 0.7"
        )
    if top_p == 0:
        raise SettingsUnusable("--top-p must be above 0; for the likeliest token leave out --temperature")


def _stop_texts(texts: list[str]) -> tuple[str, ...]:
    if "" in texts:
        raise SettingsUnusable("--stop is empty; pass the text that ends the answer")
    return tuple(texts)


def _checkpoint(
    number: str | None, adapter: Path | None, plan: Path | None, pack: Path | None
) -> Path | None:
    """Return --adapter if it is the folder of a PEFT checkpoint, which needs no plan and no pack."""
    if adapter is None or not adapter.is_dir():
        return None
    _require_exists(adapter, number)
    if plan is not None or pack is not None:
        raise SettingsUnusable(
            f"--plan and --pack belong to a file of `tessera agent train`, and {adapter} is a folder; leave "
            "them out"
        )
    from client_agent.adapters.peft_folder import read_adapter_folder

    read_adapter_folder(adapter)  # before the model is loaded
    return adapter


def _attached(
    silo: Silo, source: _AdapterSource | None, checkpoint: Path | None
) -> AbstractContextManager[object]:
    from client_agent.adapters.peft_export import checkpoint_in_place

    if checkpoint is not None:
        return checkpoint_in_place(silo.base, checkpoint)
    return source.attach(silo) if source is not None else nullcontext()
