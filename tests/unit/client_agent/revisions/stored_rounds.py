"""Rounds of a federation as files, without a model, and exported folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np

from client_agent.adapters.provenance import Origin
from client_agent.revisions.served_folder import ServedFolder, ServedRevision, digests_below, label_of
from client_agent.rounds.training_result import TrainingResult
from client_agent.storage.files import write_durably
from client_agent.storage.final_scores import FinalScores
from client_agent.storage.round_folder import (
    BRIEF,
    FINAL_SCORES,
    FINAL_WEIGHTS,
    MANIFEST,
    PLAN,
    TRAINED,
    WEIGHTS,
    RoundFolder,
    RoundFolders,
)
from schemas.messages.federations import AdapterPlan
from schemas.messages.scores import Score, Scores
from schemas.wire.digests import digest_of

BASE = "llama-96x4-4e79db21c87f"
ORIGIN = Origin(
    base_model=BASE,
    precision="none",
    adapter=AdapterPlan(kind="lora", rank=2, roles=["v"]),
    gated=False,
    seed=0,
    frames=digest_of(b""),
)


def tensors(value: float) -> dict[str, Any]:
    return {"l0.v.A": np.full((2, 8), value, np.float32), "l0.v.B": np.full((8, 2), value, np.float32)}


def add_round(
    home: Path,
    number: int,
    *,
    kept: Literal["served", "trained"] = "trained",
    loss: float | None = None,
    value: float | None = None,
) -> RoundFolder:
    """Write the files of a trained round with tensors of `value` and this validation loss."""
    folder, fill = RoundFolders(home / "rounds").open(number), float(number) if value is None else value
    scores = {"loss": Score(value=1.0, count=8)}
    result = TrainingResult(
        adapter=tensors(fill),
        private={"private.l0.v.B": np.full(4, fill, np.float32)},
        optimiser=tensors(fill + 0.1),
        start=tensors(fill + 0.2),
        start_private={},
        scores=Scores(served=scores, trained=scores, kept=kept),
        origin=ORIGIN,
        learning_rate=0.01,
        validation={} if loss is None else {"served": loss, "trained": loss},
        fingerprints={},
    )
    folder.write(TRAINED, result.to_bytes())
    folder.write(WEIGHTS, bytes(16))
    folder.write(BRIEF, b"{}")
    # Replaced by renames, as agents do: revisions have links to these files.
    write_durably(home / PLAN, b"{}")
    write_durably(home / MANIFEST, json.dumps({"plan": digest_of(b"{}")}).encode())
    return folder


def add_end(home: Path, *, loss: float | None = None, earlier: float | None = None) -> None:
    """Write the final weights and their scores."""
    (home / FINAL_WEIGHTS).write_bytes(b"final weights")
    scores = FinalScores(
        scores={"loss": Score(value=1.0, count=8)}, validation_loss=loss, earlier_loss=earlier
    )
    (home / FINAL_SCORES).write_bytes(scores.model_dump_json().encode())


def export(folder: ServedFolder, number: int, *, name: str = "aster", **changes: Any) -> ServedRevision:
    """Write a revision as an agent exports it, with small files."""
    hidden = folder.path / f".{label_of(name, number)}.new"
    (hidden / "more").mkdir(parents=True)
    (hidden / "adapter_model.safetensors").write_bytes(f"tensors of {number}".encode())
    (hidden / "more" / "adapter_config.json").write_bytes(b"{}")
    fields = {
        "name": name,
        "revision": number,
        "round": number,
        "digest": digest_of(str(number).encode()),
        "base_model": BASE,
        "base_name": "example/base",
        "format": "peft",
        "validation_loss": None,
        "plan": None,
        "federation": "fed_1",
        "files": digests_below(hidden),
    }
    revision = ServedRevision(**(fields | changes))
    folder.seal(hidden, revision, 0o640)
    return revision
