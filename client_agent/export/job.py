"""Export an adapter: score it, fold what the format cannot hold, write, load again, score again, compare."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, Protocol

import torch

from client_agent.adapters.base import Adapter, LoraFactors
from client_agent.adapters.provenance import Origin
from client_agent.errors import ExportInexact, ExportUnsupported
from client_agent.experts.routed_experts import RoutedExperts, routed_by_token
from client_agent.export.artefact import Artefact, held_out_loss
from client_agent.export.facts import TrainingFacts
from client_agent.export.fold_shift import fold_shifts, shifted, without_zero_shifts
from client_agent.export.folder import ExportFiles, place, require_free
from client_agent.export.merge import dtype_of_merged, holds_shift
from client_agent.model.loading import BaseModel
from client_agent.rounds.checkpoints import AdapterWithOrigin
from client_agent.training.silo import Silo
from schemas.messages.scores import LOSS

LARGEST_DIFFERENCE = 1e-3
"""The largest difference in held-out loss between an adapter and its export, in nats per answer token, where
the base model's own rounding is smaller."""

log = logging.getLogger(__name__)


class AdapterSource(Protocol):
    """An adapter on disk that can be injected into a silo's model."""

    def attach(self, silo: Silo) -> AbstractContextManager[AdapterWithOrigin]: ...


@dataclass(frozen=True, slots=True)
class Losses:
    """Held-out losses, in nats per answer token.

    Attributes:
        bare: of the base model.
        training: as it was stored in training; None if it was not.
        adapter: of the adapter as Tessera computes it, now.
        export: of the files that were written, loaded by the public libraries.
        routed: of the adapter with its experts weighed by token, if `adapter` is of the flattened one.
        limit: the largest difference between `adapter` and `export` that is accepted.
    """

    bare: float
    training: float | None
    adapter: float
    export: float
    routed: float | None = None
    limit: float = LARGEST_DIFFERENCE

    @property
    def is_kept(self) -> bool:
        """Whether the export has the adapter's loss."""
        return abs(self.export - self.adapter) <= self.limit

    @property
    def keeps_gain(self) -> bool:
        """Whether the export keeps nine tenths of the adapter's gain over the base model, if there is one."""
        lost, gain = abs(self.export - self.adapter), abs(self.bare - self.adapter)
        return lost <= max(LARGEST_DIFFERENCE, gain / 10)

    @property
    def has_moved(self) -> bool:
        """Whether the adapter's loss differs from that in training: data or precision have changed."""
        now = self.adapter if self.routed is None else self.routed
        return self.training is not None and abs(self.training - now) > LARGEST_DIFFERENCE


@dataclass(frozen=True, slots=True)
class ExportResult:
    """The factors of an export, whether an output shift was folded into them, and the losses.

    Attributes:
        dtype: of merged weights; None for other formats.
        rejected: a dtype of merged weights that lost too much, and its loss.
    """

    factors: Mapping[str, LoraFactors]
    folded: bool
    origin: Origin | None
    losses: Losses
    dtype: torch.dtype | None = None
    rejected: tuple[torch.dtype, float] | None = None


class Export(NamedTuple):
    """An export in its place."""

    written: ExportResult
    placed: ExportFiles


class Finisher(Protocol):
    """Write further files into the folder of an export before it is moved to its place."""

    def __call__(self, folder: Path, written: ExportResult) -> None: ...


def export_adapter(
    silo: Silo,
    source: AdapterSource,
    facts: TrainingFacts,
    artefact: Artefact,
    out: Path,
    finish: Finisher,
    *,
    flat: bool = False,
    force: bool = False,
) -> Export:
    """Export an adapter into a folder; nothing is written there if the export is not what was trained.

    With `flat`, experts that were weighed by token get the same weights for every token. With `force`, an
    export in the folder is replaced. Merged weights are in the dtype of the base model's files, or in float32
    if this loses more than the limit or a tenth of the adapter's gain. A dtype of the artefact is used as it
    is, and its loss is accepted.

    Raises:
        ExportUnsupported: the format does not support the architecture or the rank, or experts are weighed by
            token and not `flat`.
        ExportInexact: the export has another held-out loss.
        OutputUnwritable: the folder has other files.
    """
    require_free(out, force=force)
    base, scoring, longest = silo.base, facts.scoring, facts.max_length
    artefact.require_possible(base)
    log.info("export: scoring the base model and the adapter on the held-out examples")
    bare = held_out_loss(base, silo, scoring, longest)
    with source.attach(silo) as (placed, origin):
        reference = held_out_loss(base, silo, scoring, longest)
        routed: float | None = None
        if (experts := _flattened(placed, flat=flat)) is not None:
            with experts.flattened():
                routed, reference = reference, held_out_loss(base, silo, scoring, longest)
        trained = without_zero_shifts(placed.as_lora())
        # While the adapter is in place: inputs of later layers depend on it.
        factors, folded = _folded(silo, trained, artefact, longest)
    stored = facts.scores[LOSS].value if facts.scores is not None else None
    out.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target and not in /tmp, because a rename works within one file system only.
    with TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as temporary:
        folder = Path(temporary)
        losses, dtype = _scored(
            folder, factors, artefact, silo, facts, Losses(bare, stored, reference, 0.0, routed)
        )
        written = ExportResult(factors, folded, origin, losses, dtype)
        # The limit alone is not enough: in bfloat16 it may be larger than the whole gain.
        exact = losses.is_kept and losses.keeps_gain
        if dtype not in (None, torch.float32) and artefact.dtype is None and not exact:
            rejected = (dtype, losses.export)
            log.info("export: %s loses too much; writing float32", name_of(rejected[0]))
            wider = replace(artefact, dtype=torch.float32)
            # Before the wider files are written, since both may not fit on the disk.
            shutil.rmtree(folder)
            folder.mkdir()
            losses, dtype = _scored(folder, factors, wider, silo, facts, losses)
            written = ExportResult(factors, folded, origin, losses, dtype, rejected)
        # With a dtype on the command line, the rounding of its loss is accepted.
        if artefact.dtype is None:
            _require_exact(written, trained, artefact, silo)
        finish(folder, written)
        moved = place(folder, out, base.slug, force=force)
    return Export(written, moved)


def _scored(
    folder: Path,
    factors: Mapping[str, LoraFactors],
    artefact: Artefact,
    silo: Silo,
    facts: TrainingFacts,
    losses: Losses,
) -> tuple[Losses, torch.dtype | None]:
    """Write an export, load it again, and return the losses with its own, and the dtype of merged weights."""
    artefact.write(folder, factors, silo.base)
    log.info("export: loading it again, and scoring it")
    export = artefact.loss(folder, silo, facts.scoring, facts.max_length)
    dtype = dtype_of_merged(folder) if artefact.target == "merged" else None
    limit = largest_difference(losses.bare, silo.base.model.dtype, dtype or silo.base.model.dtype)
    return replace(losses, export=export, limit=limit), dtype


def largest_difference(bare: float, *dtypes: torch.dtype) -> float:
    """Return the largest difference in loss that is accepted between an adapter and its export.

    A loss of the base model is exact up to its relative rounding in the coarsest of these dtypes: 0.4 % in
    bfloat16, 0.05 % in float16.
    """
    # Half of eps is the largest relative error of one rounding.
    return max(LARGEST_DIFFERENCE, bare * max(torch.finfo(dtype).eps / 2 for dtype in dtypes))


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _flattened(placed: Adapter, *, flat: bool) -> RoutedExperts | None:
    """Return the experts to flatten; None if the adapter is an ordinary LoRA as it is.

    Raises:
        ExportUnsupported: `flat` does not fit the adapter.
    """
    experts = routed_by_token(placed)
    if flat and experts is None:
        raise ExportUnsupported(
            "--flat is for experts that are weighed by token, and there are none; leave it out"
        )
    if experts is not None and not flat:
        raise ExportUnsupported(
            "the adapter weighs its experts by token, which no ordinary LoRA can hold; export it with "
            "--routed for public peft, or with --flat as its mixture with the same weights for all tokens"
        )
    return experts


def _folded(
    silo: Silo, trained: Mapping[str, LoraFactors], artefact: Artefact, max_length: int
) -> tuple[Mapping[str, LoraFactors], bool]:
    """Return factors that the format can hold, and whether a shift was folded; the adapter is in place."""
    paths = shifted(trained)
    if artefact.target == "merged":
        paths = [path for path in paths if not holds_shift(silo.base, path)]
    if not paths:
        return trained, False
    log.info("export: folding the output shift of %d modules, on the training examples", len(paths))
    texts = silo.encoded(silo.data.train, max_length)
    return {**trained, **fold_shifts(silo.base, {path: trained[path] for path in paths}, texts)}, True


def _require_exact(
    written: ExportResult, trained: Mapping[str, LoraFactors], artefact: Artefact, silo: Silo
) -> None:
    losses = written.losses
    if losses.is_kept:
        return
    raise ExportInexact(
        f"the export has held-out loss {losses.export:.4f}, and the adapter {losses.adapter:.4f}; more than "
        f"{losses.limit:.4f} apart, so nothing was written. "
        f"{_advice(written.folded, trained, artefact, silo)}"
    )


def _advice(folded: bool, trained: Mapping[str, LoraFactors], artefact: Artefact, silo: Silo) -> str:
    if folded and artefact.target != "merged" and _holds_all_shifts(trained, silo.base):
        return (
            "The adapter shifts outputs (Q), which this format cannot hold exactly; export with "
            "`--for merged`, where the shift is a bias"
        )
    if folded:
        return (
            "The adapter shifts outputs (Q), which this architecture has no bias for; train with "
            "`adapter.bias = false` in the plan, where there is no shift"
        )
    if artefact.target == "merged":
        return (
            "Merged weights are dense, and the adapter was scored on the base model as the silo loads it; "
            "export with `--for peft`, which changes no weight, or accept this loss with `--dtype`"
        )
    return (
        "Public peft does not load this adapter as it was trained; export with `--for merged`, and please "
        "report it with the versions of peft and transformers"
    )


def _holds_all_shifts(factors: Mapping[str, LoraFactors], base: BaseModel) -> bool:
    return all(holds_shift(base, path) for path in shifted(factors))
