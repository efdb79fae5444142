"""Write the README.md of an export: a model card, with the commands that serve the model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import ModelCardData, metadata_load

from client_agent import __version__
from client_agent.export.artefact import Artefact
from client_agent.export.facts import TrainingFacts
from client_agent.export.job import Losses
from schemas.messages.scores import LOSS

FILE = "README.md"
_UNKNOWN = "unknown"
_HUB_ID = re.compile(r"^[\w.-]+/[\w.-]+$")


@dataclass(frozen=True, slots=True)
class CardFacts:
    """The content of a model card beside the facts of training.

    Attributes:
        base: the hub id of the base model, or the name of its file or folder.
        frozen: sentences on the parts of the base model that no adapter of it changes.
        licence: the licence of the base model, as its own model card names it; None if it names none.
        precision: a sentence on the precision of the base model.
        commands: how to serve the export.
        routed: whether the export is experts that are weighed by token.
    """

    artefact: Artefact
    base: str
    slug: str
    frozen: Sequence[str]
    licence: str | None
    losses: Losses
    precision: str
    commands: Sequence[str]
    routed: bool = False

    @property
    def merged(self) -> bool:
        return self.artefact.target == "merged"


def licence_of(source: str, file: Path | None) -> str | None:
    """Return the licence that a base model's own card or its GGUF file names; None if neither does.

    `source` is the model's folder or hub id; the card of a hub id is not on disk.
    """
    card = Path(source) / FILE
    head = metadata_load(card) if card.is_file() else None
    if head is not None and isinstance(head.get("license"), str):
        return str(head["license"])
    if file is None:
        return None
    from gguf import GGUFReader

    field = GGUFReader(file).get_field("general.license")
    return str(field.contents()) if field is not None else None


def write_card(folder: Path, facts: TrainingFacts, card: CardFacts) -> None:
    """Write the model card of an export."""
    text = "\n".join([_head(card), *_description(facts, card), *_scores(facts, card), *_serving(card)])
    (folder / FILE).write_text(text + "\n", "utf-8")


def _head(card: CardFacts) -> str:
    data = ModelCardData(
        base_model=card.base if _HUB_ID.match(card.base) else None,
        license=card.licence or _UNKNOWN,
        library_name="transformers" if card.merged else "peft",
        tags=["tessera", "federated-learning", *([] if card.merged else ["lora"])],
    )
    return f"---\n{data.to_yaml()}\n---"


def _description(facts: TrainingFacts, card: CardFacts) -> list[str]:
    kind = "A LoRA adapter for the base model"
    if card.merged:
        kind = "The weights of the base model with the adapter merged into them"
    if card.routed:
        kind = "LoRA experts for the base model, weighed by token (X-LoRA)"
    licence = card.licence or (
        "not named in the base model's files: look it up, and put it into the first lines of this file"
    )
    return [
        f"# {card.artefact.name}",
        "",
        f"{kind}, trained with Tessera {__version__} on the examples of one organisation"
        + (", together with other organisations that shared no text." if facts.federation else "."),
        "",
        "| | |",
        "|---|---|",
        f"| base model | {card.base} (`{card.slug}`) |",
        *(f"| not trained | {sentence} |" for sentence in card.frozen),
        f"| licence of the base model | {licence} |",
        f"| federation | {facts.federation or 'none: trained alone'} |",
        f"| rounds | {facts.rounds} |",
        f"| strategy | {facts.strategy} |",
        f"| plan | {f'`{facts.plan}`' if facts.plan else _UNKNOWN} |",
        f"| precision | {card.precision} |",
        "",
    ]


def _scores(facts: TrainingFacts, card: CardFacts) -> list[str]:
    count = facts.scores[LOSS].count if facts.scores else facts.scoring.examples
    rows = [
        ("base model", card.losses.bare),
        ("in training", facts.scores[LOSS].value if facts.scores else card.losses.adapter),
        ("this export, loaded again", card.losses.export),
    ]
    further = {name: s for name, s in (facts.scores or {}).items() if name != LOSS}
    return [
        "## Scores",
        "",
        f"Loss in nats per answer token, on at most {count} held-out examples of the organisation.",
        "",
        "| | loss |",
        "|---|---|",
        *(f"| {name} | {loss:.4f} |" for name, loss in rows),
        "",
        *(
            f"- {name} in training: {score.value:.4g} ({score.count} examples)"
            for name, score in further.items()
        ),
        "",
    ]


def _serving(card: CardFacts) -> list[str]:
    name = card.artefact.base_name
    place = (
        f"`{name}` is the base model's name and no path. In these commands, replace it with the path of the "
        f"base model's folder (in the silo: `{card.base}`)."
    )
    if card.artefact.target == "gguf":
        place = (
            f"The base model is `{card.artefact.base_file}` in `Modelfile`: put it there, or change the path."
        )
    needed = not card.merged and not _HUB_ID.match(name)
    return ["## Serving", "", *([place, ""] if needed else []), "```bash", *card.commands, "```"]
