"""Export a trained adapter in a form that other software serves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from client_agent.cli.adapters import File, Pack, Plan, Revision, Round, Which, adapter_source
from client_agent.cli.console import Config, clear_errors, opened_settings
from client_agent.errors import SettingsUnusable
from client_agent.export.folder import require_free
from schemas.user_files import require_writable_folder

if TYPE_CHECKING:
    from client_agent.export.job import ExportResult, Losses
    from client_agent.settings import AgentSettings

exporting = typer.Typer()

_BaseGguf = Annotated[
    Path | None,
    typer.Option(
        "--base-gguf",
        help="With --for gguf: .gguf file of the base model, if `model` in silo.toml is a folder.",
    ),
]
_Routed = Annotated[
    bool,
    typer.Option(
        "--routed",
        help="With --for peft: export experts that are weighed by token as an X-LoRA, with their router.",
    ),
]
_Flat = Annotated[
    bool,
    typer.Option(
        "--flat",
        help="Export experts that are weighed by token as one LoRA, with equal weights for all tokens.",
    ),
]

_Dtype = Annotated[
    Literal["float32", "bfloat16", "float16"] | None,
    typer.Option(
        help="With --for merged: type of the weights; its loss is accepted and printed.",
        show_default="that of the base model's files, or float32 if this changes the loss",
    ),
]


@exporting.command()
def export(
    out: Annotated[Path, typer.Option(help="Folder for the files.")],
    target: Annotated[
        Literal["peft", "vllm", "gguf", "merged"],
        typer.Option(
            "--for",
            help="`peft`: an adapter for transformers. `vllm`: the same adapter at a rank that vLLM serves. "
            "`gguf`: an adapter for llama.cpp and Ollama. `merged`: the whole weights.",
        ),
    ] = "peft",
    config: Config = None,
    number: Round = None,
    variant: Which = "kept",
    revision: Revision = None,
    adapter: File = None,
    plan: Plan = None,
    pack: Pack = None,
    base_gguf: _BaseGguf = None,
    routed: _Routed = False,
    flat: _Flat = False,
    dtype: _Dtype = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the export in the folder; files of others stay.")
    ] = False,
    push: Annotated[
        str | None,
        typer.Option(help="Upload the files to this private repository of the Hugging Face hub: org/name."),
    ] = None,
) -> None:
    """Write a trained adapter and a model card for other software.

    The files are loaded again with the public libraries and scored on the silo's held-out examples. If the
    loss differs from the loss of the adapter by more than 0.001, or by more than the base model's rounding,
    nothing is written.

    Examples:

    - `tessera agent export --config silo.toml --out adapter`

    - `tessera agent export --config silo.toml --out model --for merged`

    - `tessera agent export --config silo.toml --out adapter --revision 7`
    """
    with clear_errors(), opened_settings(config) as settings:
        _require_writable(out)
        _require_one_form(target, dtype, routed=routed, flat=flat)
        require_free(out, force=force)
        base_file = _base_file(settings, base_gguf, target)
        source = adapter_source(settings, number, adapter, plan, pack, variant, revision)
        facts = source.facts()
        from client_agent.export.job import export_adapter
        from client_agent.export.silo_export import FolderFinisher, artefact_of_silo
        from client_agent.export.xlora import export_routed
        from client_agent.training.silo import open_silo

        silo = open_silo(settings)
        artefact = artefact_of_silo(target, push or out.resolve().name, settings, base_file, silo, dtype)
        finish = FolderFinisher(silo, facts, artefact, settings, routed)
        if routed:
            written, placed = export_routed(silo, source, facts, artefact.base_name, out, finish, force=force)
        else:
            written, placed = export_adapter(
                silo, source, facts, artefact, out, finish, flat=flat, force=force
            )
        _report(out, settings, written, finish.precision(written))
        if placed.foreign:
            print(f"{out}: files that are not of an export stay: {', '.join(placed.foreign)}")
        if push is not None:
            from client_agent.export.push import upload

            print(upload(out, placed.files, push))


def _require_writable(out: Path) -> None:
    require_writable_folder(out, "--out")
    require_writable_folder(out.absolute().parent, "--out")  # a temporary folder is beside it


def _require_one_form(target: str, dtype: str | None, *, routed: bool, flat: bool) -> None:
    if routed and flat:
        raise SettingsUnusable("--routed and --flat are two forms of the same experts; pass only one of them")
    if dtype is not None and target != "merged":
        raise SettingsUnusable(f"--dtype belongs to --for merged; leave it out for {target}")
    if routed and target != "peft":
        raise SettingsUnusable(f"--routed belongs to --for peft; for {target} pass --flat")


def _base_file(settings: AgentSettings, option: Path | None, target: str) -> Path | None:
    """Return the base model's .gguf file: the option, or the silo's model if it is one."""
    if option is not None and target != "gguf":
        raise SettingsUnusable("--base-gguf belongs to --for gguf; leave it out")
    file = option or (Path(settings.model) if settings.model.lower().endswith(".gguf") else None)
    if file is not None and not file.is_file():
        raise SettingsUnusable(f"--base-gguf: {file} is not a file; pass the base model's .gguf file")
    return file.resolve() if file is not None else None


def _report(out: Path, settings: AgentSettings, written: ExportResult, precision: str) -> None:
    factors = written.factors.values()
    values = sum(factor.A.size + factor.B.size for factor in factors)
    size = f"LoRA of {len(factors)} modules, {values} values" if factors else "X-LoRA of experts and router"
    print(f"{out}: {size}, for {settings.model}")
    if written.folded:
        print("the adapter's output shift (Q) is folded into one more rank, fitted on the training examples")
    print(_loss_line(written.losses))
    if written.dtype is not None:
        print(_dtype_line(written))
    if written.losses.routed is not None:
        print(
            f"with experts weighed by token: held-out loss {written.losses.routed:.4f}; --flat costs the "
            "difference"
        )
    if written.losses.has_moved:
        print(
            "the adapter's loss differs from its loss in training: the held-out examples or the base model's "
            "precision have changed since"
        )
    print(precision)


def _loss_line(losses: Losses) -> str:
    training = (
        f"{losses.training:.4f} in training" if losses.training is not None else "not scored in training"
    )
    return (
        f"held-out loss: {losses.bare:.4f} base model, {training}, {losses.adapter:.4f} here, "
        f"{losses.export:.4f} exported and loaded again"
    )


def _dtype_line(written: ExportResult) -> str:
    from client_agent.export.job import name_of

    losses = written.losses
    line = f"weights in {name_of(written.dtype)}" if written.dtype is not None else ""
    if written.rejected is not None:
        dtype, loss = written.rejected
        line += (
            f", as {name_of(dtype)} has loss {loss:.4f} instead of {losses.adapter:.4f}; `--dtype` accepts it"
        )
    elif not losses.is_kept:
        line += f" as set, with loss {losses.export:.4f} instead of {losses.adapter:.4f}"
    return line
