"""Put back around the base model what a round left in the agent's folder. Asks no coordinator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from client_agent.adapters.base import Adapter
from client_agent.adapters.inject import inject, parts_of
from client_agent.adapters.provenance import Origin, origin_of, require_plan, require_same
from client_agent.adapters.rank_pruning import of_rank, rank_of
from client_agent.adapters.variational.adapter import with_importance
from client_agent.alignment.pack_exchange import frames_kept
from client_agent.errors import AdapterUnreadable, NothingTrained
from client_agent.rounds.standalone import frames_of
from client_agent.rounds.train import Trained
from client_agent.storage.base_delta import apply_weights, newest_base_delta, read_served, round_base_delta
from client_agent.storage.round_folder import (
    BRIEF,
    FINAL_WEIGHTS,
    TRAINED,
    WEIGHTS,
    RoundFolder,
    RoundFolders,
)
from client_agent.strategies.base import AgentStrategy, Folding, RanksDiffer, load_strategy
from client_agent.training.silo import Silo
from schemas.maths.adapter import Layout
from schemas.messages.federations import FederationPlan
from schemas.messages.rounds import RoundBrief
from schemas.wire.compress import is_frame
from schemas.wire.envelope import Encoding, slots, unpack
from schemas.wire.ranks import any_rank
from schemas.wire.refusals import BodyRefused

What = Literal["local", "personalised"]
_LARGEST_BODY = 2**33


class Reopened(NamedTuple):
    """An adapter back in place, and what it was trained under, if that is known."""

    adapter: Adapter
    origin: Origin | None


def read_weights(
    body: bytes, layout: Layout, *, ranks_differ: bool = False
) -> dict[str, NDArray[np.float32]]:
    """Read the body of served weights; with `ranks_differ` in any rank, cut or padded to the layout's.

    Raises:
        AdapterUnreadable: it is none, or one of another layout.
    """
    encoding: Encoding | None = "zstd" if is_frame(body) else None
    try:
        wanted = any_rank(layout) if ranks_differ else slots(layout)
        with unpack(body, encoding=encoding, expected=wanted, max_bytes=_LARGEST_BODY) as weights:
            read = {name: weights.read_float32(name) for name in layout}
            return of_rank(read, next(iter(layout.values()))[0]) if ranks_differ else read
    except BodyRefused as refusal:
        raise AdapterUnreadable(
            f"the stored weights are damaged, or not of this plan ({refusal}); "
            "`--round` chooses another round"
        ) from refusal


def load_served(
    adapter: Adapter, strategy: AgentStrategy, rounds: RoundFolders, folder: RoundFolder
) -> Mapping[str, NDArray[np.float32]]:
    """Read the weights of a round, and fold into the base model what comes with them.

    Raises:
        AdapterUnreadable: they are damaged, or of another layout.
        BaseDeltaMissing: they add to what is not here.
    """
    body = folder.read(WEIGHTS)
    if not isinstance(strategy, Folding):
        return read_weights(body, adapter.layout, ranks_differ=isinstance(strategy, RanksDiffer))
    served = read_served(body, adapter.layout)
    adapter.load_fold(round_base_delta(rounds, folder, served).added)
    return served.adapter


@contextmanager
def adapter_of_round(silo: Silo, home: Path, round_number: int | None, what: What) -> Iterator[Reopened]:
    """Put an adapter in place that a federation's folder holds; leaving the context takes it away.

    `local` is the trained adapter of that round, private parts and the gated global branch included: what was
    scored. `personalised` is what the coordinator served for that round, mixed of what clients trained on
    their own copies of the base model, beside what of an adapter stays here where the strategy says so. None
    means the newest there is.

    Raises:
        NothingTrained: the folder does not hold it (any more).
        AdapterUnreadable: what it holds is damaged.
        TrainedUnderAnother: the base model here is not the one that it is for.
        AlignmentImpossible: the pack is not here, or is not one of this base model.
    """
    folder, rounds = round_with(home, round_number, what), RoundFolders(home / "rounds")
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
    parts = parts_of(strategy)
    plan = brief.adapter
    if isinstance(strategy, RanksDiffer) and trained is not None:
        plan = plan.model_copy(update={"rank": rank_of(trained.adapter)})
    injected = inject(silo.base, plan, frames, gated=gated, seed=seed, parts=parts)
    with with_importance(injected, silo.base, strategy, seed=seed) as adapter:
        if what == "local" and trained is not None:
            if isinstance(strategy, Folding):
                load_served(adapter, strategy, rounds, folder)
            adapter.load(trained.adapter)
            adapter.load_private(trained.private)
            if gated:
                adapter.load_global(read_weights(folder.read(WEIGHTS), adapter.layout))
        else:
            final = home / FINAL_WEIGHTS
            is_final = round_number is None and final.is_file()
            before = folder.number + 1 if is_final else folder.number
            if not is_final:
                adapter.load(load_served(adapter, strategy, rounds, folder))
            elif isinstance(strategy, Folding):
                served = read_served(final.read_bytes(), adapter.layout)
                adapter.load_fold(apply_weights(newest_base_delta(rounds, before=before), served).added)
                adapter.load(served.adapter)
            else:
                differ = isinstance(strategy, RanksDiffer)
                adapter.load(read_weights(final.read_bytes(), adapter.layout, ranks_differ=differ))
            last = rounds.newest_with(TRAINED, before=before)
            if parts is not None and last is not None:  # what is served is half of the adapter
                adapter.load_private(Trained.read(last.path / TRAINED).private)
        yield Reopened(adapter, origin if what == "local" else None)


def round_with(home: Path, round_number: int | None, what: What) -> RoundFolder:
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
        if round_number in (None, folder.number):
            return folder
    numbers = ", ".join(str(folder.number) for folder in reversed(there))
    raise NothingTrained(
        f"round {round_number} is not in {home}; there is {numbers} (keep_rounds sets how many)"
    )


def read_trained(file: Path, plan: FederationPlan) -> Trained:
    """Read what `train_alone` left in a file, for the plan that it was trained under.

    Raises:
        AdapterUnreadable: the file holds no such adapter, or does not say what it was trained under.
        TrainedUnderAnother: the plan's adapter is another one.
    """
    try:
        trained = Trained.read(file)
    except AdapterUnreadable as error:
        raise AdapterUnreadable(f"{error}; give a file that `tessera agent train --out` wrote") from error
    if trained.origin is None:
        raise AdapterUnreadable(
            f"{file} does not say what it was trained under: train it again with `tessera agent train --out`"
        )
    require_plan(trained.origin, plan.adapter)
    return trained


@contextmanager
def reopened(silo: Silo, plan: FederationPlan, pack: bytes | None, trained: Trained) -> Iterator[Reopened]:
    """Put back around the base model what `read_trained` gave; leaving the context takes it away.

    Raises:
        TrainedUnderAnother: it was trained under another plan or pack, or on another base model.
        LayoutMismatch: the file holds other tensors than that plan's.
        AlignmentImpossible, SettingsUnusable: as `frames_of` says.
    """
    frames, seed = frames_of(silo.base, plan, pack), plan.training.seed
    if trained.origin is not None:
        require_same(trained.origin, origin_of(silo.base, plan.adapter, frames, gated=False, seed=seed))
    with inject(silo.base, plan.adapter, frames, gated=False, seed=seed) as adapter:
        adapter.load(trained.adapter)
        adapter.load_private(trained.private)
        yield Reopened(adapter, trained.origin)
