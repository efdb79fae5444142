"""One round's local work: score, train, score; and its result as one file. Knows no coordinator."""

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
from client_agent.adapters.variational.adapter import VariationalAdapter
from client_agent.errors import AdapterUnreadable, Stopped
from client_agent.strategies.base import AgentStrategy, Folding, RanksDiffer
from client_agent.training.evaluate import evaluate
from client_agent.training.loop import train
from client_agent.training.progress import TrainingProgress
from client_agent.training.silo import Silo
from schemas.messages.federations import TrainingPlan
from schemas.messages.rounds import Metrics, Scores

Arrays = dict[str, NDArray[np.float32]]
_PARTS = ("adapter", "private", "optimiser")


@dataclass(frozen=True, slots=True)
class Trained:
    """What a round leaves at the client: adapter, gates and optimiser belong together: one file.

    `origin` says what they were trained under; a file need not say it.
    """

    adapter: Arrays
    private: Arrays
    optimiser: Arrays
    scores: Scores
    origin: Origin | None

    def to_bytes(self) -> bytes:
        """Write it as safetensors, scores and origin in the metadata."""
        tensors = {
            f"{part}/{name}": values for part in _PARTS for name, values in getattr(self, part).items()
        }
        said = {"scores": self.scores.model_dump_json()}
        if self.origin is not None:
            said["origin"] = self.origin.model_dump_json()
        return safetensors.numpy.save(tensors, metadata=said)

    @classmethod
    def from_bytes(cls, content: bytes) -> Trained:
        """Read what `to_bytes` wrote."""
        parts: dict[str, Arrays] = {part: {} for part in _PARTS}
        for key, values in safetensors.numpy.load(content).items():
            part, _, name = key.partition("/")
            parts[part][name] = values
        said = _metadata(content)
        return cls(
            **parts,
            scores=Scores.model_validate_json(said["scores"]),
            origin=Origin.model_validate_json(said["origin"]) if "origin" in said else None,
        )

    @classmethod
    def read(cls, file: Path) -> Trained:
        """Read it from a file.

        Raises:
            AdapterUnreadable: there is none, it is damaged, or it is something else.
        """
        try:
            return cls.from_bytes(file.read_bytes())
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            raise AdapterUnreadable(f"{file} holds no trained adapter, or a damaged one ({error})") from error


def train_locally(
    silo: Silo,
    adapter: Adapter,
    plan: TrainingPlan,
    *,
    origin: Origin,
    round_number: int,
    start: State,
    earlier: Trained | None,
    strategy: AgentStrategy | None = None,
    stop: Callable[[], bool],
    title: str,
) -> Trained:
    """Train the injected adapter from `start`, going on with the gates and the optimiser of `earlier`.

    `origin` says what the adapter was injected with; `strategy` may begin anew each round, or prune ranks.

    Raises:
        Stopped: `stop` said so; nothing is kept of the round's training.
    """
    adapter.load(start)
    if earlier is not None:
        adapter.load_private(earlier.private)
    learns = adapter if isinstance(adapter, VariationalAdapter) else None
    pruner = Pruner(adapter, strategy.pruning) if isinstance(strategy, RanksDiffer) else None
    penalty = pruner.penalty if pruner is not None else None
    if learns:
        penalty = learns.penalty(silo.data.train, plan.max_length, round_number)
    before = _score(silo, plan)
    with TrainingProgress(title) as progress:
        outcome = train(
            silo.base,
            adapter,
            silo.data.train,
            plan,
            seed=plan.seed,
            round_number=round_number,
            optimiser_state=going_on_from(earlier, adapter, strategy),
            on_step=progress,
            stop=stop,
            penalty=penalty,
        )
    if len(outcome.losses) < plan.steps:
        raise Stopped
    if learns:
        learns.move_prior()
    state = pruner.pruned() if pruner is not None else adapter.state()
    after = _score(silo, plan)
    return Trained(
        state,
        adapter.private_state(),
        outcome.optimiser_state,
        Scores(before=before, after=after, examples=len(silo.data.test)),
        origin,
    )


def going_on_from(earlier: Trained | None, adapter: Adapter, strategy: AgentStrategy | None) -> Arrays | None:
    """Give the optimiser's state that goes on: not that of an adapter that is no more, or had more ranks."""
    if earlier is None or (isinstance(strategy, Folding) and strategy.restarts):
        return None
    pruned = isinstance(strategy, RanksDiffer) and any(
        earlier.optimiser[f"{name}.exp_avg"].shape != tensor.shape
        for name, tensor in adapter.named_parameters().items()
        if f"{name}.exp_avg" in earlier.optimiser
    )
    return None if pruned else earlier.optimiser


def zeros_like(adapter: Adapter) -> Mapping[str, NDArray[np.float32]]:
    """Give the state from which everybody starts."""
    return {name: np.zeros(shape, np.float32) for name, shape in adapter.layout.items()}


def _score(silo: Silo, plan: TrainingPlan) -> Metrics:
    return evaluate(silo.base, silo.data.test, max_length=plan.max_length)


def _metadata(content: bytes) -> dict[str, str]:
    """Read the metadata of a safetensors file: the public NumPy reader leaves it out."""
    length = int.from_bytes(content[:8], "little")
    header: dict[str, dict[str, str]] = json.loads(content[8 : 8 + length])
    return header["__metadata__"]
