"""Train in a silo without any federation: what a client would reach by itself, in the plan's own steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from client_agent.errors import AdapterUnreadable, PlanUnusable
from client_agent.local_training import Trained, train_locally, zeros_like
from client_agent.model.adapter import Adapter
from client_agent.model.frames import random_frames
from client_agent.model.inject import inject
from client_agent.model.pack import Pack
from client_agent.silo import Silo
from schemas.messages.federations import FederationPlan


def read_plan(file: Path) -> FederationPlan:
    """Read a federation's plan from JSON.

    Raises:
        PlanUnusable: there is none, or a field is wrong.
    """
    try:
        return FederationPlan.model_validate_json(file.read_bytes())
    except OSError as error:
        raise PlanUnusable(f"{file} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        fields = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise PlanUnusable(f"{file} is not a federation plan: {fields}") from error


def train_alone(
    silo: Silo, plan: FederationPlan, pack: bytes | None, stop: Callable[[], bool]
) -> Iterator[Trained]:
    """Train for the plan's rounds, one result per round; `pack` is the alignment pack whose frames to use.

    Raises:
        Stopped: `stop` said so.
        AlignmentImpossible: the pack is not one of this base model.
    """
    earlier: Trained | None = None
    with injected(silo, plan, pack) as adapter:
        for number in range(1, plan.rounds.total + 1):
            earlier = train_locally(
                silo,
                adapter,
                plan.training,
                round_number=number,
                start=earlier.adapter if earlier is not None else zeros_like(adapter),
                earlier=earlier,
                stop=stop,
                title=f"round {number}",
            )
            yield earlier


@contextmanager
def reopened(silo: Silo, plan: FederationPlan, pack: bytes | None, file: Path) -> Iterator[Adapter]:
    """Put back around the base model what `train_alone` left in a file; leaving the context takes it away.

    Raises:
        AdapterUnreadable: the file holds no such adapter.
        LayoutMismatch: it was trained under another plan, or on another base model.
        AlignmentImpossible: the pack is not one of this base model.
    """
    try:
        trained = Trained.read(file)
    except AdapterUnreadable as error:
        raise AdapterUnreadable(f"{error}; give a file that `tessera agent train --out` wrote") from error
    with injected(silo, plan, pack) as adapter:
        adapter.load(trained.adapter)
        adapter.load_private(trained.private)
        yield adapter


def injected(silo: Silo, plan: FederationPlan, pack: bytes | None) -> Adapter:
    """Put the plan's adapter around the silo's base model; leaving its context takes it away.

    Raises:
        AlignmentImpossible: the pack is not one of this base model.
    """
    seed = plan.training.seed
    if pack is not None:
        frames = Pack.from_body(pack).frames(silo.base)
    else:
        frames = random_frames(silo.base, plan.adapter, seed) if plan.adapter.kind == "pq" else {}
    return inject(silo.base, plan.adapter, frames, gated=False, seed=seed)
