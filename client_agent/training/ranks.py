"""Data-parallel training by the processes of torchrun: rank 0 leads a round, the others compute gradients.

Rank 0 alone has the key, the coordinator, the optimiser and the files. Before each step it sends the tensors
that train and the texts, and receives the sum of the gradients. The others keep nothing between two steps.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from client_agent.adapters.base import adapter_tensors
from client_agent.adapters.frames import Frame, Frames
from client_agent.errors import AgentError
from client_agent.model.loading import BaseModel
from client_agent.model.tokens import TokenizedText
from schemas.messages.federations import AdapterPlan, StrategyPlan

_WAIT = timedelta(days=365)  # followers wait for the next round as long as it takes
_STEP = timedelta(minutes=30)


class RankLost(AgentError):
    """Another process of torchrun ended, or does not answer."""

    def __init__(self, error: Exception) -> None:
        reason = str(error).strip().partition("\n")[0]
        super().__init__(
            f"another process of torchrun ended, or did not answer ({reason}); its own error is above. Start "
            "torchrun again: the round resumes"
        )


class RanksUnusable(AgentError):
    """The training of this silo cannot be divided among the processes of torchrun."""


@dataclass(frozen=True, slots=True)
class Structure:
    """The facts by which the other processes put the same adapter around the base model."""

    plan: AdapterPlan
    strategy: StrategyPlan
    gated: bool
    seed: int
    frames: Frames


class Connection:
    """The processes' two groups: one carries messages, the default one tensors on the model's device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            torch.cuda.set_device(device)
        # Messages have a group of their own: followers wait for days between rounds, and a step must not.
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=_STEP)
        self._control = dist.new_group(backend="gloo", timeout=_WAIT)
        self.world, self.rank = dist.get_world_size(), dist.get_rank()

    def message(self, facts: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send facts to all, or receive them; return them."""
        with _lost():
            return self._message(facts)

    def _message(self, facts: Mapping[str, Any] | None) -> dict[str, Any]:
        body = bytearray(json.dumps(facts).encode()) if facts is not None else bytearray()
        # A broadcast needs the size on all sides first.
        size = torch.tensor([len(body)])
        dist.broadcast(size, 0, group=self._control)
        content = (
            torch.frombuffer(body, dtype=torch.uint8) if body else torch.empty(int(size), dtype=torch.uint8)
        )
        dist.broadcast(content, 0, group=self._control)
        received: dict[str, Any] = json.loads(content.numpy().tobytes())
        return received

    def spread(self, tensors: Sequence[Tensor]) -> None:
        """Send the values of float32 tensors of rank 0 to the same tensors of all."""
        # One transfer for all tensors: many small ones take most of a step.
        flat = torch.cat([tensor.detach().flatten() for tensor in tensors])
        with _lost():
            dist.broadcast(flat, 0)
        _fill([tensor.data for tensor in tensors], flat)

    def add_up(self, parameters: Sequence[nn.Parameter], loss: float) -> float:
        """Add up gradients and losses of all in rank 0; return the sum of the losses."""
        # A process without texts still takes part in the sum.
        gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        total = torch.tensor([loss], dtype=torch.float64)
        with _lost():
            dist.reduce(flat, 0)
            dist.reduce(total, 0, group=self._control)
        if self.rank == 0:
            _fill([p.grad for p in parameters if p.grad is not None], flat)
        return total.item()

    def close(self) -> None:
        dist.destroy_process_group()


class Leader:
    """Rank 0, as its training sees the other processes."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._base: BaseModel | None = None

    @classmethod
    def joined(cls, device: torch.device) -> Self:
        return cls(Connection(device))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(RankLost):
            # The others are gone, and a message would wait for them.
            if not isinstance(error, RankLost):
                self._connection.message({"order": "end"})
        self._connection.close()

    @contextmanager
    def followed(self, base: BaseModel, structure: Structure) -> Iterator[None]:
        """Make the others put the same adapter around their base model, until the context ends.

        Raises:
            RankLost: another process ended.
        """
        facts = {
            "order": "open",
            "plan": structure.plan.model_dump(mode="json"),
            "strategy": structure.strategy.model_dump(mode="json"),
            "gated": structure.gated,
            "seed": structure.seed,
            "frames": {name: [f.A.shape, f.B.shape] for name, f in structure.frames.items()},
        }
        self._connection.message(facts)
        self._base = base
        try:
            yield
        finally:
            self._base = None
        self._connection.message({"order": "close"})

    def begin(self, **facts: Any) -> None:
        """Send what stays the same in all steps of a training, frozen tensors included."""
        tensors = self._tensors()
        self._connection.message({"order": "begin", **facts, "tensors": sorted(tensors)})
        self._connection.spread([tensors[name] for name in sorted(tensors)])

    def divide(self, step: Sequence[Sequence[TokenizedText]], number: int) -> list[list[TokenizedText]]:
        """Send the texts of a step and the tensors that train; return rank 0's share, never empty."""
        parts = shares(step, self._connection.world)
        rows = [[[text.ids, text.answer] for text in texts] for part in parts for texts in part]
        counts = [len(part) for part in parts]
        facts = {
            "order": "step",
            "number": number,
            "counts": counts,
            "texts": rows,
            "answers": answers_of(step),
        }
        self._connection.message(facts)
        self._connection.spread(trainable(self._tensors()))
        return parts[0]

    def add_up(self, loss: float) -> float:
        """Add the gradients of all to those of rank 0; return the sum of the losses."""
        return self._connection.add_up(trainable(self._tensors()), loss)

    def _tensors(self) -> dict[str, Tensor]:
        if self._base is None:
            raise RuntimeError("no adapter is followed")
        return adapter_tensors(self._base)


def require_divisible(obstacle: str | None) -> None:
    """Check that a strategy's training consists of steps on one adapter whose layers stay.

    Args:
        obstacle: what else the training does, if anything.

    Raises:
        RanksUnusable: it does something else.
    """
    if obstacle is not None:
        raise RanksUnusable(
            f"the plan's method {obstacle}, which torchrun cannot divide; run the agent without it"
        )


def shares(step: Sequence[Sequence[TokenizedText]], world: int) -> list[list[list[TokenizedText]]]:
    """Divide a step among processes: whole batches if their number allows it, else each batch's texts.

    Rank 0 has at least one text; others may have none.
    """
    # Whole batches keep the padding that was chosen for them.
    if len(step) % world == 0:
        return [[list(texts) for texts in step[rank::world]] for rank in range(world)]
    return [[part for texts in step if (part := list(texts[rank::world]))] for rank in range(world)]


def answers_of(step: Sequence[Sequence[TokenizedText]]) -> int:
    """Return the number of tokens of a step that are predicted."""
    return sum(sum(text.answer[1:]) for texts in step for text in texts)


def trainable(tensors: Mapping[str, Tensor]) -> list[nn.Parameter]:
    return [t for _, t in sorted(tensors.items()) if isinstance(t, nn.Parameter) and t.requires_grad]


def frames_of_message(facts: Mapping[str, Any]) -> Frames:
    """Return frames of the shapes of a message; their values come with `begin`."""
    return {
        name: Frame(np.zeros(a, np.float32), np.zeros(b, np.float32), rate=1.0)
        for name, (a, b) in facts["frames"].items()
    }


def _fill(targets: Sequence[Tensor], flat: Tensor) -> None:
    begin = 0
    for target in targets:
        target.copy_(flat[begin : begin + target.numel()].view_as(target))
        begin += target.numel()


@contextmanager
def _lost() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # of torch.distributed
        raise RankLost(error) from error
