"""The base delta: the low-rank change of the base model from served weights, accumulated per round.

Served weights carry it whole or as an increment; the base model itself is never written to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from client_agent.errors import AdapterUnreadable, AgentError
from client_agent.storage.round_folder import FOLD, RoundFolder, RoundFolders
from client_agent.storage.tensor_metadata import open_body
from schemas.maths.adapter import Layout, delta_layout, factor_of, module_of
from schemas.maths.factors import Factors, recompressed, resized, side_by_side
from schemas.messages.updates import FoldedWeightsManifest
from schemas.wire.envelope import any_rank, slots
from schemas.wire.errors import BodyRefused
from schemas.wire.header import Slot

_ROUND = "round"

Arrays = dict[str, NDArray[np.float32]]


class BaseDeltaMissing(AgentError):
    """Served weights are an increment to a base delta that is not on disk."""


@dataclass(frozen=True, slots=True)
class BaseDelta:
    """The sum of all changes of the base model up to the weights of `round`, by (layer, role)."""

    round: int
    added: Mapping[str, Factors]

    def to_bytes(self) -> bytes:
        """Return safetensors: `l0.q.A`, `l0.q.B`, ... and `round`."""
        tensors: dict[str, NDArray[np.generic]] = {_ROUND: np.array(self.round)}
        for module, factors in self.added.items():
            tensors |= {f"{module}.A": factors.A, f"{module}.B": factors.B}
        return safetensors.numpy.save(tensors)

    @classmethod
    def from_bytes(cls, content: bytes) -> BaseDelta:
        """Parse the output of `to_bytes`.

        Raises:
            AdapterUnreadable: the content is damaged.
        """
        try:
            tensors = safetensors.numpy.load(content)
            round_number = int(tensors.pop(_ROUND))
            return cls(round_number, _paired(tensors))
        except (SafetensorError, ValueError, KeyError) as error:
            raise AdapterUnreadable(f"{FOLD} is damaged ({error}); try an older round") from error


@dataclass(frozen=True, slots=True)
class ServedDelta:
    """Weights of a strategy with a base delta.

    Attributes:
        adapter: start values of A and B; zeros where none are served.
        added: the change of the base model, by (layer, role).
    """

    manifest: FoldedWeightsManifest
    adapter: Arrays
    added: Mapping[str, Factors]


def read_served(body: bytes, layout: Layout, *, mixed_ranks: bool = False) -> ServedDelta:
    """Parse the body of served weights; with `mixed_ranks` A and B of any rank are cut or padded to the
    layout's.

    Raises:
        AdapterUnreadable: the body is damaged or has another layout.
    """
    try:
        with open_body(body, _expected(layout, mixed_ranks=mixed_ranks)) as weights:
            read = {name: np.array(weights.read_float32(name)) for name in weights.names}
            manifest = weights.manifest(FoldedWeightsManifest)
    except BodyRefused as refusal:
        raise AdapterUnreadable(
            f"the stored weights are damaged, or not of this plan ({refusal}); "
            "choose another round with `--round`"
        ) from refusal
    residual = {name: values for name, values in read.items() if name not in layout}
    # Factors that the body lacks are zero: the first weights have none, and `any_rank` allows fewer ranks.
    adapter = {
        name: resized(read.get(name, np.zeros(shape, np.float32)), shape) for name, shape in layout.items()
    }
    try:
        unprefixed = {f"{module_of(n)}.{factor_of(n)[1:]}": values for n, values in residual.items()}
        return ServedDelta(manifest, adapter, _paired(unprefixed))
    except (KeyError, ValueError) as error:
        raise AdapterUnreadable(
            f"the stored weights have only half of the base delta of {error}; "
            "choose another round with `--round`"
        ) from error


def require_whole(served: ServedDelta) -> None:
    """Raise unless weights have the whole base delta.

    Raises:
        BaseDeltaMissing: they are an increment.
    """
    if (base_round := served.manifest.fold_from) not in (None, 1):
        raise BaseDeltaMissing(
            f"the whole weights are an increment to round {base_round}; update the coordinator"
        )


def require_applicable(earlier: BaseDelta, served: ServedDelta) -> None:
    """Check that served weights are whole, or an increment to a base delta.

    Raises:
        BaseDeltaMissing: the weights are an increment to another round's base delta.
    """
    round_number, base_round = served.manifest.round, served.manifest.fold_from
    if base_round not in (None, 1, earlier.round) and round_number != earlier.round:
        raise BaseDeltaMissing(
            f"the weights of round {round_number} are an increment to the base delta of round {base_round}, "
            f"and this client has that of round {earlier.round}. The coordinator does not serve the whole "
            "base delta: update it, or stop this client until one round is published without it; the client "
            "is then served the whole base delta"
        )


def apply_weights(earlier: BaseDelta, served: ServedDelta) -> BaseDelta:
    """Return the base delta after served weights.

    Raises:
        BaseDeltaMissing: see `require_applicable`.
    """
    require_applicable(earlier, served)
    round_number = served.manifest.round
    if round_number == earlier.round:  # the same weights again, after an abandoned round
        return earlier
    if served.manifest.fold_from in (None, 1):
        return BaseDelta(round_number, served.added)
    added = dict(earlier.added)
    for module, factors in served.added.items():
        # Ranks would add up round by round without recompression.
        added[module] = recompressed(side_by_side([added[module], factors])) if module in added else factors
    return BaseDelta(round_number, added)


def round_base_delta(rounds: RoundFolders, folder: RoundFolder, served: ServedDelta) -> BaseDelta:
    """Return the base delta of a round; compute and store it first if the round's folder lacks it.

    Raises:
        BaseDeltaMissing: the round's weights are an increment to another round's base delta.
    """
    if not folder.has(FOLD):
        folder.write(FOLD, apply_weights(newest_base_delta(rounds, before=folder.number), served).to_bytes())
    return BaseDelta.from_bytes(folder.read(FOLD))


def newest_base_delta(rounds: RoundFolders, *, before: int) -> BaseDelta:
    """Return the newest base delta on disk from before a round; empty if there is none."""
    last = rounds.newest_with(FOLD, before=before)
    return BaseDelta.from_bytes(last.read(FOLD)) if last is not None else BaseDelta(1, {})


def _expected(layout: Layout, *, mixed_ranks: bool) -> dict[str, Slot]:
    """Return the tensors of a body: optional A and B, and optional RA (k, d_in), RB (d_out, k)."""
    ranked = any_rank(layout) if mixed_ranks else slots(layout)
    expected = {name: replace(slot, optional=True) for name, slot in ranked.items()}
    for name, shape in delta_layout(layout).items():
        width = (None, shape[1]) if factor_of(name) == "RA" else (shape[0], None)
        expected[name] = Slot(width, optional=True)
    return expected


def _paired(tensors: Mapping[str, NDArray[np.float32]]) -> dict[str, Factors]:
    """Pair A and B of each module; raise KeyError or ValueError where they do not match."""
    modules = {}
    for module in sorted({module_of(name) for name in tensors}):
        factors = Factors(tensors[f"{module}.A"], tensors[f"{module}.B"])
        if factors.B.shape[1] != factors.rank:
            raise ValueError(module)
        modules[module] = factors
    return modules
