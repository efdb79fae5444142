"""Load the adapter of a stored round onto the base model. Offline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from client_agent.adapters.base import Adapter
from client_agent.adapters.provenance import Origin, origin_of, require_plan, require_same
from client_agent.alignment.pack_exchange import stored_frames
from client_agent.errors import AdapterUnreadable, NothingTrained
from client_agent.rounds.adapter_in_place import prepare, put_in_place
from client_agent.rounds.opened_round import OpenedBrief, adapter_plan
from client_agent.rounds.part import Part, Setting
from client_agent.rounds.served_weights import StoredWeights
from client_agent.rounds.standalone import frames_of
from client_agent.rounds.training_result import Side, TrainingResult
from client_agent.storage.final_scores import read_final_scores
from client_agent.storage.round_folder import FINAL_WEIGHTS, TRAINED, WEIGHTS, RoundFolder, RoundFolders
from client_agent.training.silo import Silo
from schemas.messages.federations import FederationPlan

Variant = Literal["kept", "served", "trained", "final"]


class AdapterWithOrigin(NamedTuple):
    """An injected adapter, and its provenance if the file has it."""

    adapter: Adapter
    origin: Origin | None


@contextmanager
def adapter_of_round(
    silo: Silo, home: Path, round_number: int | None, variant: Variant
) -> Iterator[AdapterWithOrigin]:
    """Inject an adapter of a federation's folder; it is removed when the context ends.

    Args:
        round_number: None = the newest round.
        variant: `served` is the adapter with which the round began, `trained` the one after the local steps,
            both as they were scored, with private tensors and global branch. `kept` is the better of both.
            `final` are the final weights, with the tensors of the last local steps that are never sent; with
            a global branch, that is where they are. Without a round number, `kept` are the final weights if
            the federation is finished, unless they are worse than what the silo kept in its last round.

    Raises:
        NothingTrained: the folder has no such adapter.
        AdapterUnreadable: a file is damaged.
        ProvenanceMismatch: the base model is not the one of training.
        AlignmentImpossible: the pack is missing, or of another base model.
    """
    folder, is_final = round_with(home, round_number, variant), is_finished(home, round_number, variant)
    opened, rounds = OpenedBrief.read(folder), RoundFolders(home / "rounds")
    brief, strategy, parts = opened.brief, opened.strategy, opened.parts
    frames, seed = stored_frames(brief, silo.base, home).frames, brief.training.seed
    trained = TrainingResult.read(folder.path / TRAINED) if folder.has(TRAINED) else None
    if trained is not None:
        current = origin_of(silo.base, brief.adapter, frames, gated=strategy.options.gated, seed=seed)
        # Under other frames the tensors fit in shape and compute another function.
        require_same(trained.origin, current)
    stored = None if is_final or trained is None else trained.of(kept_side(trained, variant))
    earlier = _trained_before(rounds, folder.number + is_final) if stored is None else None
    served = StoredWeights(home, folder, is_final=is_final)
    # The first weights of a client are its adapter; a global branch beside it comes with a local one.
    gated = strategy.options.gated and (stored is not None or earlier is not None)
    newest = stored[0] if stored is not None else trained.adapter if trained is not None else None
    for part in parts:
        silo = part.silo(silo)
    setting = Setting(
        silo=silo,
        plan=adapter_plan(opened, newest, None),
        frames=frames,
        seed=seed,
        max_length=brief.training.max_length,
        home=home,
        served=served,
        stored=stored[0] if stored is not None else None,
    )
    with put_in_place(setting, parts, gated=gated) as adapter:
        prepare(adapter, setting, parts)
        if gated or not strategy.options.gated:
            strategy.served.load_beside(adapter, served)
        if trained is not None and stored is not None:
            adapter.load(stored[0])
            adapter.load_private(stored[1])
            yield AdapterWithOrigin(adapter, trained.origin)
            return
        values = strategy.served.values(adapter, served)
        if variant == "served" or gated:  # as the round began with it; final weights are what they are
            local = earlier.adapter if earlier is not None else None
            values = strategy.start(local, values, newcomer=earlier is None)
        adapter.load(values)
        if earlier is not None and adapter.private_state():
            adapter.load_private(earlier.private)
        yield AdapterWithOrigin(adapter, None)


def is_finished(home: Path, round_number: int | None, variant: Variant) -> bool:
    """Whether a variant is the federation's final weights."""
    if variant != "kept":
        return variant == "final"
    if round_number is not None or not (home / FINAL_WEIGHTS).is_file():
        return False
    scores = read_final_scores(home)
    # Before they are scored, the final weights are what the federation ends with.
    return scores is None or scores.are_kept


def kept_side(trained: TrainingResult, variant: Variant) -> Side:
    """Return the adapter of a round for a variant."""
    if variant == "served" or variant == "trained":
        return variant
    return trained.scores.kept


def _trained_before(rounds: RoundFolders, round_number: int) -> TrainingResult | None:
    folder = rounds.newest_with(TRAINED, before=round_number)
    return TrainingResult.read(folder.path / TRAINED) if folder is not None else None


def round_with(home: Path, round_number: int | None, variant: Variant) -> RoundFolder:
    """Find the stored round of an adapter; None = the newest that has it.

    Raises:
        NothingTrained: the folder has no such round.
    """
    if variant == "final" and not (home / FINAL_WEIGHTS).is_file():
        raise NothingTrained(
            f"{home} has no final weights; run `tessera agent run` until the federation ends"
        )
    needed = WEIGHTS if variant == "served" or is_finished(home, round_number, variant) else TRAINED
    folders = [folder for folder in RoundFolders(home / "rounds").newest_first() if folder.has(needed)]
    if not folders:
        raise NothingTrained(f"{home} has no trained round; run `tessera agent run` until a round is done")
    for folder in folders:
        if round_number in (None, folder.number):
            return folder
    numbers = ", ".join(str(folder.number) for folder in reversed(folders))
    raise NothingTrained(
        f"round {round_number} is not in {home}, which has {numbers}; keep_rounds sets the number of rounds"
    )


def read_trained(file: Path, plan: FederationPlan) -> TrainingResult:
    """Read the output of `tessera agent train --out`, and check the plan that it was trained with.

    Raises:
        AdapterUnreadable: the file is not a trained adapter, or has a value that is not finite.
        ProvenanceMismatch: the plan's adapter differs.
    """
    try:
        trained = TrainingResult.read(file)
    except AdapterUnreadable as error:
        raise AdapterUnreadable(f"{error}; pass a file that `tessera agent train --out` wrote") from error
    require_plan(trained.origin, plan.adapter)
    for part in (trained.adapter, trained.private, trained.start, trained.start_private):
        # torch would load NaN without an error, and score or export a broken model.
        for name, values in part.items():
            if not np.isfinite(values).all():
                raise AdapterUnreadable(
                    f"{file}: {name} has values that are not finite numbers; train the adapter again"
                )
    return trained


@contextmanager
def reopened(
    silo: Silo,
    plan: FederationPlan,
    pack: bytes | None,
    trained: TrainingResult,
    variant: Variant,
    parts: Sequence[Part] = (),
) -> Iterator[AdapterWithOrigin]:
    """Inject an adapter that `read_trained` returned; it is removed when the context ends.

    `parts` are those with which it was trained.

    Raises:
        ProvenanceMismatch: plan, pack or base model are not those of training.
        LayoutMismatch: the file has other tensors than the plan's adapter.
        AlignmentImpossible, SettingsUnusable: see `frames_of`.
    """
    frames, seed = frames_of(silo.base, plan, pack), plan.training.seed
    require_same(trained.origin, origin_of(silo.base, plan.adapter, frames, gated=False, seed=seed))
    tensors, private = trained.of(kept_side(trained, variant))
    setting = Setting(
        silo, plan.adapter, frames, seed, plan.training.max_length, Path(), served=None, stored=tensors
    )
    with put_in_place(setting, parts) as adapter:
        prepare(adapter, setting, parts)
        adapter.load(tensors)
        adapter.load_private(private)
        yield AdapterWithOrigin(adapter, trained.origin)
