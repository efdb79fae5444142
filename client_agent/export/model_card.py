"""Write the README.md of an export: a model card that the hub reads, and the commands that serve the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import ModelCardData, metadata_load

from client_agent import __version__
from client_agent.export.facts import TrainingFacts
from schemas.messages.scores import LOSS

FILE = "README.md"
_UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class CardFacts:
    """What a model card says beside the facts of training.

    Attributes:
        base: the folder or hub id of the base model.
        licence: the licence of the base model, as its own model card names it; None if it names none.
        precision: a sentence on the precision of the base model.
        commands: how to serve the export.
    """

    name: str
    target: str
    base: str
    slug: str
    licence: str | None
    exported_loss: float
    reference_loss: float
    bare_loss: float
    precision: str
    commands: Sequence[str]


def licence_of(folder: Path, file: Path | None = None) -> str | None:
    """Return the licence that a base model's own card names, or that its GGUF file names; None without one."""
    card = folder / FILE
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
    merged = card.target == "merged"
    data = ModelCardData(
        base_model=card.base,
        license=card.licence or _UNKNOWN,
        library_name="transformers" if merged else "peft",
        tags=["tessera", "federated-learning", *([] if merged else ["lora"])],
    )
    return f"---\n{data.to_yaml()}\n---"


def _description(facts: TrainingFacts, card: CardFacts) -> list[str]:
    kind = (
        "The weights of the base model with the adapter merged into them"
        if card.target == "merged"
        else ("A LoRA adapter for the base model")
    )
    licence = card.licence or (
        "not named in the base model's files: look it up, and put it into the first lines of this file"
    )
    return [
        f"# {card.name}",
        "",
        f"{kind}, trained with Tessera {__version__} on the examples of one organisation"
        + (", together with other organisations that shared no text." if facts.federation else "."),
        "",
        "| | |",
        "|---|---|",
        f"| base model | {card.base} (`{card.slug}`) |",
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
        ("base model", card.bare_loss),
        ("in training", facts.scores[LOSS].value if facts.scores else card.reference_loss),
        ("this export, loaded again", card.exported_loss),
    ]
    others = {name: s for name, s in (facts.scores or {}).items() if name != LOSS}
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
            for name, score in others.items()
        ),
        "",
    ]


def _serving(card: CardFacts) -> list[str]:
    return ["## Serving", "", "```bash", *card.commands, "```"]
