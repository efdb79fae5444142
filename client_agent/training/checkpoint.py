"""Store the position inside a round's training, so that a killed agent resumes it."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from client_agent.model.tokens import TokenizedText
from client_agent.storage.files import write_durably
from client_agent.storage.round_folder import TRAINER

Arrays = Mapping[str, NDArray[np.float32]]
CHECKPOINT_SECONDS = 180.0
_PARTS = ("parameters", "optimiser")
_GENERATORS = "generators/"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Position:
    """Training after `len(losses)` steps.

    Attributes:
        parameters: every trainable tensor, private ones included.
        optimiser: AdamW's state, as in `TrainingOutcome`.
        generators: the states of torch's random number generators by device, uint8.
        seconds: the time of training so far.
    """

    parameters: Arrays
    optimiser: Arrays
    generators: Mapping[str, NDArray[np.uint8]]
    losses: Sequence[float]
    tokens: int
    seconds: float


class TrainingCheckpoint:
    """A file with the position of one training; `every_seconds` is what a kill loses at most.

    The owner is a digest of everything that determines the training. A file of another owner is ignored.
    `belongs_to` is what `train` cannot see of it: the served weights, the frames. With `keeps_end` a finished
    training is stored too, because the round has another one after it.
    """

    def __init__(
        self, file: Path, every_seconds: float, belongs_to: str = "", *, keeps_end: bool = False
    ) -> None:
        self.belongs_to = belongs_to
        self.keeps_end = keeps_end
        self._file = file
        self._every_seconds = every_seconds
        self._stored_at = time.monotonic()

    def beside(self, name: str) -> TrainingCheckpoint:
        """Return the checkpoint of an earlier training of the same round, in a file of its own."""
        file = self._file.with_stem(f"{self._file.stem}_{name}")
        return TrainingCheckpoint(file, self._every_seconds, self.belongs_to, keeps_end=True)

    @property
    def trainer_folder(self) -> Path:
        """The folder beside the file where a trainer of the silo's own has its files."""
        return self._file.with_name(TRAINER)

    @property
    def is_due(self) -> bool:
        return time.monotonic() - self._stored_at >= self._every_seconds

    def store(self, owner: str, position: Position) -> None:
        """Write the position in place of the previous one, atomically and durably."""
        tensors: dict[str, NDArray[np.generic]] = {
            f"{part}/{name}": values for part in _PARTS for name, values in getattr(position, part).items()
        }
        tensors |= {f"{_GENERATORS}{name}": state for name, state in position.generators.items()}
        facts = {
            "owner": owner,
            "losses": json.dumps(list(position.losses)),
            "tokens": str(position.tokens),
            "seconds": repr(position.seconds),
        }
        # The library stores the metadata in any order; nobody compares the bytes of this file.
        write_durably(self._file, safetensors.numpy.save(tensors, metadata=facts))
        self._stored_at = time.monotonic()

    def load(self, owner: str) -> Position | None:
        """Return the stored position; None if there is none of this owner."""
        try:
            content = self._file.read_bytes()
        except FileNotFoundError:
            return None
        try:
            facts = _metadata(content)
            # Left by a round that was abandoned, or by other settings: its position means nothing here.
            if facts["owner"] != owner:
                log.info("training: ignoring %s, which belongs to another training", self._file.name)
                return None
            tensors = safetensors.numpy.load(content)
            parts = {
                part: {
                    name.removeprefix(f"{part}/"): values
                    for name, values in tensors.items()
                    if name.startswith(f"{part}/")
                }
                for part in (*_PARTS, _GENERATORS.rstrip("/"))
            }
            return Position(
                **parts,
                losses=[float(loss) for loss in json.loads(facts["losses"])],
                tokens=int(facts["tokens"]),
                seconds=float(facts["seconds"]),
            )
        except (SafetensorError, ValueError, KeyError) as error:
            log.warning("training: %s is damaged (%s); the round's training starts again", self._file, error)
            return None


def owner_of(facts: Sequence[object], arrays: Sequence[Arrays], texts: Sequence[TokenizedText]) -> str:
    """Return a digest of the inputs of a training: plain facts, tensors by name, and token ids."""
    digest = hashlib.sha256(json.dumps(list(facts)).encode())
    for chunk in _chunks(arrays, texts):
        digest.update(chunk)
    return digest.hexdigest()


def _chunks(arrays: Sequence[Arrays], texts: Sequence[TokenizedText]) -> Iterator[bytes]:
    for tensors in arrays:
        for name in sorted(tensors):
            yield f"{name} {tensors[name].shape}".encode()
            yield np.ascontiguousarray(tensors[name]).tobytes()
    for text in texts:
        # Tokens and not the text: a changed tokenizer or template changes what is trained on.
        yield np.array([*text.ids, *text.answer], np.int64).tobytes()


def _metadata(content: bytes) -> dict[str, str]:
    length = int.from_bytes(content[:8], "little")
    header: dict[str, dict[str, str]] = json.loads(content[8 : 8 + length])
    return header["__metadata__"]
