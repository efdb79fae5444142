"""Local training of one round: score, train, score; and its result as one file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from client_agent.adapters.base import Adapter, State
from client_agent.adapters.provenance import Origin
from client_agent.adapters.rank_pruning import Pruner
from client_agent.errors import AdapterUnreadable, Stopped
from client_agent.storage.round_folder import TRAINED, RoundFolder, RoundFolders
from client_agent.strategies.base import Traits
from client_agent.training.evaluate import evaluate
from client_agent.training.loop import train
from client_agent.training.progress import TrainingProgress
from client_agent.training.silo import Silo
from schemas.messages.federations import TrainingPlan
from schemas.messages.scores import Score, Scores

Arrays = dict[str, NDArray[np.float32]]
_PARTS = ("adapter", "private", "optimiser")
_PLAIN = Traits()


@dataclass(frozen=True, slots=True)
class Trained:
    """The result of a round's training: adapter, private tensors and optimiser state, in one file.

    `origin` is their provenance; older files lack it.
    """

    adapter: Arrays
    private: Arrays
    optimiser: Arrays
    scores: Scores
    origin: Origin | None

    def to_bytes(self) -> bytes:
        tensors = {
            f"{part}/{name}": values for part in _PARTS for name, values in getattr(self, part).items()
        }
        metadata = {"scores": self.scores.model_dump_json()}
        if self.origin is not None:
            metadata["origin"] = self.origin.model_dump_json()
        return safetensors.numpy.save(tensors, metadata=metadata)

    @classmethod
    def from_bytes(cls, content: bytes) -> Trained:
        parts: dict[str, Arrays] = {part: {} for part in _PARTS}
        for key, values in safetensors.numpy.load(content).items():
            part, _, name = key.partition("/")
            parts[part][name] = values
        metadata = _metadata(content)
        return cls(
            **parts,
            scores=Scores.model_validate_json(metadata["scores"]),
            origin=Origin.model_validate_json(metadata["origin"]) if "origin" in metadata else None,
        )

    @classmethod
    def read(cls, file: Path) -> Trained:
        """Read a file.

        Raises:
            AdapterUnreadable: the file is missing, damaged, or of another kind.
        """
        try:
            return cls.from_bytes(file.read_bytes())
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            raise AdapterUnreadable(f"{file} is not a trained adapter, or is damaged ({error})") from error


class TrainedRounds:
    """The trained adapters of the rounds on disk; each file is read once, when it is first needed."""

    def __init__(self, rounds: RoundFolders) -> None:
        self._rounds = rounds
        self._trained: dict[int, Trained] = {}

    def of(self, folder: RoundFolder) -> Trained:
        """Return the trained adapter of a round.

        Raises:
            AdapterUnreadable: the file is missing or damaged.
        """
        if folder.number not in self._trained:
            self._trained[folder.number] = Trained.read(folder.path / TRAINED)
        return self._trained[folder.number]

    def before(self, round_number: int) -> Trained | None:
        """Return the trained adapter of the last round before this one; None before the first."""
        folder = self._rounds.newest_with(TRAINED, before=round_number)
        return self.of(folder) if folder is not None else None


def train_locally(
    silo: Silo,
    adapter: Adapter,
    plan: TrainingPlan,
    *,
    origin: Origin,
    round_number: int,
    start: State,
    earlier: Trained | None,
    traits: Traits = _PLAIN,
    stop: Callable[[], bool],
    title: str,
) -> Trained:
    """Train the injected adapter from `start` with the private tensors and the optimiser state of `earlier`.

    Raises:
        Stopped: `stop` returned true; nothing of the training is stored.
    """
    adapter.load(start)
    if earlier is not None:
        adapter.load_private(earlier.private)
    pruner = Pruner(adapter, traits.pruning) if traits.pruning is not None else None
    own_penalty = adapter.penalty(silo.data.train, plan.max_length, round_number)
    before = _score(silo, plan)
    with TrainingProgress(title) as progress:
        outcome = train(
            silo.base,
            adapter,
            silo.data.train,
            plan,
            seed=plan.seed,
            round_number=round_number,
            optimiser_state=_optimiser_state(earlier, adapter, traits),
            on_step=progress,
            stop=stop,
            penalty=pruner.penalty if pruner is not None else own_penalty,
            options=silo.options,
        )
    if len(outcome.losses) < plan.steps:
        raise Stopped
    adapter.end_round()
    state = pruner.pruned() if pruner is not None else adapter.state()
    after = _score(silo, plan)
    return Trained(
        state,
        adapter.private_state(),
        outcome.optimiser_state,
        Scores(served=before, trained=after, kept="trained"),
        origin,
    )


def _optimiser_state(earlier: Trained | None, adapter: Adapter, traits: Traits) -> Arrays | None:
    if earlier is None or traits.restarts:
        return None
    pruned = traits.mixed_ranks and any(
        earlier.optimiser[f"{name}.exp_avg"].shape != tensor.shape
        for name, tensor in adapter.named_parameters().items()
        if f"{name}.exp_avg" in earlier.optimiser
    )
    return None if pruned else earlier.optimiser


def zeros_like(adapter: Adapter) -> Mapping[str, NDArray[np.float32]]:
    return {name: np.zeros(shape, np.float32) for name, shape in adapter.layout.items()}


def _score(silo: Silo, plan: TrainingPlan) -> dict[str, Score]:
    return evaluate(silo.base, silo.data.test, max_length=plan.max_length).scores()


def _metadata(content: bytes) -> dict[str, str]:
    length = int.from_bytes(content[:8], "little")
    header: dict[str, dict[str, str]] = json.loads(content[8 : 8 + length])
    return header["__metadata__"]
