"""An export of a silo: the name of its base model, and the files beside the tensors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from client_agent.adapters.peft_export import precision_note
from client_agent.export.artefact import Artefact, Target
from client_agent.export.facts import TrainingFacts
from client_agent.export.job import ExportResult
from client_agent.export.model_card import CardFacts, licence_of, write_card
from client_agent.export.serving import TEMPLATE, commands, routed_commands
from client_agent.model.gguf import model_folder
from client_agent.model.quantization import precision_of
from client_agent.settings import AgentSettings, Dtype
from client_agent.training.silo import Silo, dtype_named


@dataclass(frozen=True, slots=True)
class FolderFinisher:
    """Writes the model card, and the chat template where the format has none."""

    silo: Silo
    facts: TrainingFacts
    artefact: Artefact
    settings: AgentSettings
    routed: bool

    def precision(self, written: ExportResult) -> str:
        if written.origin is not None:
            return precision_note(written.origin.precision)
        return precision_note(precision_of(self.silo.base.model), was="scored")

    def __call__(self, folder: Path, written: ExportResult) -> None:
        template = self.silo.base.tokenizer.chat_template
        if self.artefact.chat and self.artefact.target in ("peft", "vllm") and isinstance(template, str):
            (folder / TEMPLATE).write_text(template, "utf-8")
        model = Path(self.settings.model)
        card = CardFacts(
            artefact=self.artefact,
            base=_shown_name(self.settings),
            slug=self.silo.base.slug,
            frozen=self.silo.base.parts.frozen.sentences(),
            licence=licence_of(self.artefact.source, model if model.suffix == ".gguf" else None),
            losses=written.losses,
            precision=self.precision(written),
            commands=routed_commands(self.artefact)
            if self.routed
            else commands(self.artefact, written.factors),
            routed=self.routed,
        )
        write_card(folder, self.facts, card)


def artefact_of_silo(
    target: Target,
    name: str,
    settings: AgentSettings,
    base_file: Path | None,
    silo: Silo,
    dtype: Dtype | None,
) -> Artefact:
    """Return what is exported from a silo's model.

    Args:
        name: the name of the model in the files and commands of the export.
        base_file: the base model's .gguf file, for a format that names one.
        dtype: of merged weights; None = that of the base model's files.
    """
    source = _dense_source(settings)
    is_folder = Path(source).is_dir()
    base_name = silo.base.slug if is_folder else source
    beside = f"./{base_file.name if base_file is not None else base_name}"
    return Artefact(
        target=target,
        name=name.rpartition("/")[2],
        source=source,
        base_name=base_name,
        base_file=beside if is_folder or base_file is not None else base_name,
        chat=bool(silo.data.train[0].turns),
        dtype=dtype_named(dtype, silo.base.device, "none") if dtype is not None else None,
    )


def _shown_name(settings: AgentSettings) -> str:
    """Return the base model's hub id, or the name of its file or folder without this machine's paths."""
    return Path(settings.model).name if Path(settings.model).exists() else settings.model


def _dense_source(settings: AgentSettings) -> str:
    """Return the base model's dense weights on this machine: an absolute path, or the hub id unchanged."""
    model = model_folder(settings.model, settings.folder)
    return str(Path(model).resolve()) if Path(model).is_dir() else model
