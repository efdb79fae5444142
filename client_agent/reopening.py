"""Put back around the base model what a round left in the agent's folder. Asks no coordinator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from client_agent.errors import AdapterUnreadable, NothingTrained
from client_agent.frames_in_use import frames_kept
from client_agent.local_training import Trained
from client_agent.model.adapter import Adapter
from client_agent.model.inject import inject
from client_agent.origin import Origin, origin_of, require_same
from client_agent.round_folder import BRIEF, FINAL_WEIGHTS, TRAINED, WEIGHTS, RoundFolder, RoundFolders
from client_agent.silo import Silo
from client_agent.strategies.base import load_strategy
from client_agent.variational.adapter import with_importance
from schemas.maths.adapter import Layout
from schemas.messages.rounds import RoundBrief
from schemas.wire.compress import is_frame
from schemas.wire.envelope import Encoding, slots, unpack
from schemas.wire.refusals import BodyRefused

What = Literal["local", "personalised"]
_LARGEST_BODY = 2**33


class Reopened(NamedTuple):
    """An adapter back in place, and what it was trained under, if that is known."""

    adapter: Adapter
    origin: Origin | None


def read_weights(body: bytes, layout: Layout) -> dict[str, NDArray[np.float32]]:
    """Read the body of served weights.

    Raises:
        AdapterUnreadable: it is none, or one of another layout.
    """
    encoding: Encoding | None = "zstd" if is_frame(body) else None
    try:
        with unpack(body, encoding=encoding, expected=slots(layout), max_bytes=_LARGEST_BODY) as weights:
            return {name: weights.read_float32(name) for name in layout}
    except BodyRefused as refusal:
        raise AdapterUnreadable(
            f"the stored weights are damaged, or not of this plan ({refusal}); "
            "`--round` chooses another round"
        ) from refusal


@contextmanager
def adapter_of_round(silo: Silo, home: Path, number: int | None, what: What) -> Iterator[Reopened]:
    """Put an adapter in place that a federation's folder holds; leaving the context takes it away.

    `local` is the trained adapter of round `number`, private parts and the gated global branch included: what
    was scored. `personalised` is what the coordinator served for that round, mixed of what clients trained on
    their own copies of the base model. None means the newest there is.

    Raises:
        NothingTrained: the folder does not hold it (any more).
        AdapterUnreadable: what it holds is damaged.
        TrainedUnderAnother: the base model here is not the one that it is for.
        AlignmentImpossible: the pack is not here, or is not one of this base model.
    """
    folder = round_with(home, number, what)
    brief = RoundBrief.model_validate_json(folder.read(BRIEF))
    frames = frames_kept(brief, silo.base, home).frames
    strategy = load_strategy(brief.strategy.name, brief.strategy.options)
    gated = strategy.gated and what == "local"
    seed = brief.training.seed
    trained = Trained.read(folder.path / TRAINED) if folder.has(TRAINED) else None
    origin = trained.origin if trained is not None else None
    if origin is not None:
        here = origin_of(silo.base, brief.adapter, frames, gated=strategy.gated, seed=seed)
        require_same(origin, here)
    injected = inject(silo.base, brief.adapter, frames, gated=gated, seed=seed)
    with with_importance(injected, silo.base, strategy, seed=seed) as adapter:
        if what == "local" and trained is not None:
            adapter.load(trained.adapter)
            adapter.load_private(trained.private)
            if gated:
                adapter.load_global(read_weights(folder.read(WEIGHTS), adapter.layout))
        else:
            final = home / FINAL_WEIGHTS
            body = final.read_bytes() if number is None and final.is_file() else folder.read(WEIGHTS)
            adapter.load(read_weights(body, adapter.layout))
        yield Reopened(adapter, origin if what == "local" else None)


def round_with(home: Path, number: int | None, what: What) -> RoundFolder:
    """Find the round that an adapter is asked of, the newest that has it for None.

    Raises:
        NothingTrained: the folder does not hold it (any more).
    """
    needed = TRAINED if what == "local" else WEIGHTS
    there = [folder for folder in RoundFolders(home / "rounds").newest_first() if folder.has(needed)]
    if not there:
        raise NothingTrained(
            f"nothing was trained in {home} yet; run `tessera agent run` until a round is done"
        )
    for folder in there:
        if number in (None, folder.number):
            return folder
    numbers = ", ".join(str(folder.number) for folder in reversed(there))
    raise NothingTrained(f"round {number} is not in {home}; there is {numbers} (keep_rounds sets how many)")
