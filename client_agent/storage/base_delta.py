"""Keep what served weights add to the base model for good, round after round. Knows no model and no torch.

Whole or as an increment, as the weights' manifest says; the base model itself is never written to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from client_agent.errors import AdapterUnreadable, AgentError
from client_agent.storage.round_folder import FOLD, RoundFolder, RoundFolders
from schemas.maths.adapter import Layout, factor_of, module_of
from schemas.maths.factors import Factors, recompressed, side_by_side
from schemas.messages.updates import FoldedWeightsManifest
from schemas.wire.compress import is_frame
from schemas.wire.envelope import Encoding, unpack
from schemas.wire.header import Slot
from schemas.wire.refusals import BodyRefused

_LARGEST_BODY = 2**33
_ROUND = "round"

Arrays = dict[str, NDArray[np.float32]]


class FoldMissing(AgentError):
    """Weights add to what those of another round had made of the base model, and that is not here."""


@dataclass(frozen=True, slots=True)
class Fold:
    """What weights up to those of `round` have added to a base model, by (layer, role)."""

    round: int
    added: Mapping[str, Factors]

    def to_bytes(self) -> bytes:
        """Write it as safetensors: `l0.q.A`, `l0.q.B`, and `round`."""
        tensors: dict[str, NDArray[np.generic]] = {_ROUND: np.array(self.round)}
        for module, one in self.added.items():
            tensors |= {f"{module}.A": one.A, f"{module}.B": one.B}
        return safetensors.numpy.save(tensors)

    @classmethod
    def from_bytes(cls, content: bytes) -> Fold:
        """Read what `to_bytes` wrote.

        Raises:
            AdapterUnreadable: it is damaged, or something else.
        """
        try:
            tensors = safetensors.numpy.load(content)
            number = int(tensors.pop(_ROUND))
            return cls(number, _paired(tensors))
        except (SafetensorError, ValueError, KeyError) as error:
            raise AdapterUnreadable(f"{FOLD} is damaged ({error}); try an older round") from error


@dataclass(frozen=True, slots=True)
class Served:
    """Weights of a strategy that folds.

    Attributes:
        adapter: A and B to go on from; zeros where none are served.
        added: what is to be added to the base model, by (layer, role).
    """

    manifest: FoldedWeightsManifest
    adapter: Arrays
    added: Mapping[str, Factors]


def read_served(body: bytes, layout: Layout) -> Served:
    """Read the body of served weights.

    Raises:
        AdapterUnreadable: it is none, or one of another layout.
    """
    encoding: Encoding | None = "zstd" if is_frame(body) else None
    try:
        with unpack(body, encoding=encoding, expected=_expected(layout), max_bytes=_LARGEST_BODY) as weights:
            read = {name: np.array(weights.read_float32(name)) for name in weights.names}
            manifest = weights.manifest(FoldedWeightsManifest)
    except BodyRefused as refusal:
        raise AdapterUnreadable(
            f"the stored weights are damaged, or not of this plan ({refusal}); "
            "`--round` chooses another round"
        ) from refusal
    residual = {name: values for name, values in read.items() if name not in layout}
    adapter = {name: read.get(name, np.zeros(shape, np.float32)) for name, shape in layout.items()}
    try:
        unprefixed = {f"{module_of(n)}.{factor_of(n)[1:]}": values for n, values in residual.items()}
        return Served(manifest, adapter, _paired(unprefixed))
    except (KeyError, ValueError) as error:
        raise AdapterUnreadable(f"the stored weights fold half a product into {error}") from error


def require_whole(body: bytes, layout: Layout) -> None:
    """Make sure that a body has all that was folded, before it is kept.

    Raises:
        AdapterUnreadable: it is no body of weights, or one of another layout.
        FoldMissing: it adds to something.
    """
    if (begin := read_served(body, layout).manifest.fold_from) not in (None, 1):
        raise FoldMissing(f"the coordinator's whole is none: it adds to the weights of round {begin}")


def after(earlier: Fold, served: Served) -> Fold:
    """Say what the base model has become once weights are served.

    Raises:
        FoldMissing: they add to what is not here.
    """
    number, begin = served.manifest.round, served.manifest.fold_from
    if number == earlier.round:  # the same weights again, after a round that came to nothing
        return earlier
    if begin in (None, 1):
        return Fold(number, served.added)
    if begin != earlier.round:
        raise FoldMissing(
            f"the weights of round {number} add to what those of round {begin} had made of the base model, "
            f"and what is here is that of round {earlier.round}. The coordinator has no whole to begin "
            "with (any more, or yet: update it); else stay away until one round is published without this "
            "client: it is then served the whole"
        )
    added = dict(earlier.added)
    for module, one in served.added.items():
        added[module] = recompressed(side_by_side([added[module], one])) if module in added else one
    return Fold(number, added)


def fold_of(rounds: RoundFolders, folder: RoundFolder, served: Served) -> Fold:
    """Give what the base model is in a round, and keep it in the round's folder.

    Raises:
        FoldMissing: the round's weights add to what is not here.
    """
    if not folder.has(FOLD):
        folder.write(FOLD, after(newest(rounds, before=folder.number), served).to_bytes())
    return Fold.from_bytes(folder.read(FOLD))


def newest(rounds: RoundFolders, *, before: int) -> Fold:
    """Give what the rounds on disk have made of the base model; at first it is as it was."""
    last = rounds.newest_with(FOLD, before=before)
    return Fold.from_bytes(last.read(FOLD)) if last is not None else Fold(1, {})


def _expected(layout: Layout) -> dict[str, Slot]:
    """Expect A and B, or neither, and RA (k, d_in), RB (d_out, k) where something is folded."""
    expected = {}
    for name, shape in layout.items():
        width = (None, shape[1]) if factor_of(name) == "A" else (shape[0], None)
        expected[name] = Slot(shape, optional=True)
        expected[f"{module_of(name)}.R{factor_of(name)}"] = Slot(width, optional=True)
    return expected


def _paired(tensors: Mapping[str, NDArray[np.float32]]) -> dict[str, Factors]:
    """Put A and B of each module together; KeyError or ValueError where they do not fit."""
    made = {}
    for module in sorted({module_of(name) for name in tensors}):
        one = Factors(tensors[f"{module}.A"], tensors[f"{module}.B"])
        if one.B.shape[1] != one.rank:
            raise ValueError(module)
        made[module] = one
    return made
