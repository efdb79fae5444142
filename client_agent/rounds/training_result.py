"""The result of a round's training as one file, and the results of all rounds on disk. Needs no torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from pydantic import TypeAdapter
from safetensors import SafetensorError

from client_agent.adapters.provenance import Origin
from client_agent.errors import AdapterUnreadable
from client_agent.storage.final_scores import TaskScores
from client_agent.storage.round_folder import TRAINED, RoundFolder, RoundFolders
from client_agent.storage.tensor_metadata import metadata_of, save_tensors
from client_agent.training.text_losses import TextLoss
from schemas.messages.scores import Scores

Arrays = dict[str, NDArray[np.float32]]
Side = Literal["served", "trained"]
_PARTS = ("adapter", "private", "optimiser", "start", "start_private")
_TASKS: TypeAdapter[dict[str, TaskScores]] = TypeAdapter(dict[str, TaskScores])
_TEXTS: TypeAdapter[dict[str, Sequence[TextLoss]]] = TypeAdapter(dict[str, Sequence[TextLoss]])


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """The result of a round's training, in one file.

    Attributes:
        adapter: the adapter after the local steps; it is what is sent.
        private: the tensors after the local steps that are never sent.
        start: the adapter before the local steps, as it was scored as `served`.
        start_private: the private tensors before the local steps.
        origin: the provenance.
        learning_rate: the rate of the local steps.
        validation: the losses on the validation examples of `served` and `trained`; empty below 16 examples.
        fingerprints: digests of what was scored as `served` and `trained`, so that it is not scored again.
        tasks: the scores of each task of `served` and `trained`; empty for data of no named tasks.
        texts: the losses of each test text of `served` and `trained`.
        test_digest: the digest of these texts; losses of equal ones are paired.
        validation_texts: the losses of each validation text of both; empty below 16 examples.
        validation_digest: the digest of these texts.
    """

    adapter: Arrays
    private: Arrays
    optimiser: Arrays
    start: Arrays
    start_private: Arrays
    scores: Scores
    origin: Origin
    learning_rate: float
    validation: dict[str, float]
    fingerprints: dict[str, str]
    tasks: dict[str, TaskScores] = field(default_factory=dict)
    texts: dict[str, Sequence[TextLoss]] = field(default_factory=dict)
    test_digest: str = ""
    validation_texts: dict[str, Sequence[TextLoss]] = field(default_factory=dict)
    validation_digest: str = ""

    def to_bytes(self) -> bytes:
        tensors = {
            f"{part}/{name}": values for part in _PARTS for name, values in getattr(self, part).items()
        }
        metadata = {
            "scores": self.scores.model_dump_json(),
            "origin": self.origin.model_dump_json(),
            # `repr` gives all digits, so that the number read back is the same.
            "learning_rate": repr(self.learning_rate),
            "validation": json.dumps(self.validation),
            "fingerprints": json.dumps(self.fingerprints),
            "tasks": _TASKS.dump_json(self.tasks).decode(),
            "texts": json.dumps(self.texts),
            "test_digest": self.test_digest,
            "validation_texts": json.dumps(self.validation_texts),
            "validation_digest": self.validation_digest,
        }
        # Metadata in order, since digests of this file must not depend on chance.
        return save_tensors(tensors, metadata)

    @classmethod
    def from_bytes(cls, content: bytes) -> TrainingResult:
        parts: dict[str, Arrays] = {part: {} for part in _PARTS}
        for key, values in safetensors.numpy.load(content).items():
            part, _, name = key.partition("/")
            parts[part][name] = values
        metadata = metadata_of(content)
        return cls(
            **parts,
            scores=Scores.model_validate_json(metadata["scores"]),
            origin=Origin.model_validate_json(metadata["origin"]),
            learning_rate=float(metadata["learning_rate"]),
            validation=json.loads(metadata["validation"]),
            fingerprints=json.loads(metadata["fingerprints"]),
            tasks=_TASKS.validate_json(metadata["tasks"]),
            texts=_TEXTS.validate_json(metadata["texts"]),
            test_digest=metadata["test_digest"],
            # Results of release 0.2.0 have none.
            validation_texts=_TEXTS.validate_json(metadata.get("validation_texts", "{}")),
            validation_digest=metadata.get("validation_digest", ""),
        )

    def of(self, side: Side) -> tuple[Arrays, Arrays]:
        """Return adapter and private tensors before or after the local steps."""
        return (self.adapter, self.private) if side == "trained" else (self.start, self.start_private)

    @classmethod
    def read(cls, file: Path) -> TrainingResult:
        """Read a file.

        Raises:
            AdapterUnreadable: the file is missing, damaged, or of another kind.
        """
        try:
            return cls.from_bytes(file.read_bytes())
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            raise AdapterUnreadable(f"{file} is not a trained adapter, or is damaged ({error})") from error


class TrainingResults:
    """The trained adapters of the rounds on disk; each file is read once, when it is first needed."""

    def __init__(self, rounds: RoundFolders) -> None:
        self._rounds = rounds
        self._trained: dict[int, TrainingResult] = {}

    def of(self, folder: RoundFolder) -> TrainingResult:
        """Return the trained adapter of a round.

        Raises:
            AdapterUnreadable: the file is missing or damaged.
        """
        if folder.number not in self._trained:
            self._trained[folder.number] = TrainingResult.read(folder.path / TRAINED)
        return self._trained[folder.number]

    def before(self, round_number: int) -> TrainingResult | None:
        """Return the trained adapter of the last round before this one; None before the first."""
        folder = self._rounds.newest_with(TRAINED, before=round_number)
        return self.of(folder) if folder is not None else None
