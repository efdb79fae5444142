"""Export a trained adapter in a form that other software serves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from client_agent.cli.adapters import File, Pack, Plan, Round, Which, adapter_source
from client_agent.cli.console import Config, clear_errors, opened_settings
from client_agent.errors import OutputUnwritable

if TYPE_CHECKING:
    from client_agent.settings import AgentSettings

exporting = typer.Typer()


@exporting.command()
def export(
    out: Annotated[Path, typer.Option(help="The folder for adapter_config.json and the tensors.")],
    config: Config = None,
    number: Round = None,
    variant: Which = "kept",
    adapter: File = None,
    plan: Plan = None,
    pack: Pack = None,
) -> None:
    """Write a standard PEFT LoRA checkpoint, which the public peft library loads without Tessera.

    It reproduces the scored adapter on the base model in the precision of its training. The command prints
    that precision.
    """
    with clear_errors(), opened_settings(config) as settings:
        blocking = next((path for path in (out, *out.parents) if path.exists() and not path.is_dir()), None)
        if blocking is not None:
            raise OutputUnwritable(
                f"--out: {blocking} is not a folder; pass a folder, or the name of a new one"
            )
        source = adapter_source(settings, number, adapter, plan, pack, variant)
        from client_agent.adapters.peft_export import precision_note, write_checkpoint
        from client_agent.training.silo import open_silo

        silo = open_silo(settings)
        with source.attach(silo) as (placed, origin):
            factors = placed.as_lora()
            write_checkpoint(out, factors, silo.base.model, _public_model_name(settings))
        values = sum(factor.A.size + factor.B.size for factor in factors.values())
        print(f"{out}: LoRA of {len(factors)} modules, {values} values, for {settings.model}")
        print(precision_note(origin.precision if origin is not None else None))


def _public_model_name(settings: AgentSettings) -> str:
    """Return the base model's name as valid in any folder: an absolute path, or the hub id unchanged."""
    from client_agent.model.gguf import model_folder

    model = model_folder(settings.model, settings.folder)
    return str(Path(model).resolve()) if Path(model).is_dir() else model
