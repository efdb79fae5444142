"""Rewrite a federation's folder in the formats of before named scores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import safetensors.numpy

from client_agent.storage.round_folder import BRIEF, SCORES_SENT, TRAINED
from client_agent.storage.tensor_metadata import metadata_of


def age(home: Path) -> None:
    """Rewrite briefs, trained adapters and sent scores of all rounds."""
    for folder in sorted((home / "rounds").iterdir()):
        _rewrite(folder / BRIEF, _aged_brief)
        _rewrite(folder / SCORES_SENT, aged_scores)
        if (folder / TRAINED).is_file():
            _age_trained(folder / TRAINED)


def aged_scores(new: dict[str, Any]) -> dict[str, Any]:
    def metrics(scores: dict[str, Any]) -> dict[str, float]:
        named = {name: scores[name]["value"] for name in ("loss", "perplexity")}
        return named | {"exact_match": 0.5}

    return {
        "before": metrics(new["served"]),
        "after": metrics(new["trained"]),
        "examples": new["served"]["loss"]["count"],
    }


def _rewrite(file: Path, change: Any) -> None:
    if file.is_file():
        file.write_text(json.dumps(change(json.loads(file.read_text()))))


def _aged_brief(brief: dict[str, Any]) -> dict[str, Any]:
    del brief["training"]["schedule_floor"], brief["scores"], brief["total_rounds"]
    return brief


def _age_trained(file: Path) -> None:
    content = file.read_bytes()
    tensors = {
        name: values
        for name, values in safetensors.numpy.load(content).items()
        if not name.startswith(("start/", "start_private/"))
    }
    metadata = metadata_of(content)
    scores = aged_scores(json.loads(metadata["scores"]))
    kept = {"scores": json.dumps(scores)} | {k: v for k, v in metadata.items() if k == "origin"}
    file.write_bytes(safetensors.numpy.save(tensors, metadata=kept))
