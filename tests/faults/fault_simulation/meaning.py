"""The meaning of updates written by a recipe, by their bytes and the earlier events.

I14: what the service keeps of an accepted update is what the reference decoding of its bytes gives, exactly.
I15: what rounding lost is in the next update of its agent exactly once, whatever killed whom in between.
I16: an agent begins a round from the weights that it was given, but for the rounding of the plan's recipe.
"""

from __future__ import annotations

import sqlite3
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from client_agent.rounds.encode_update import _rounding_seed
from client_agent.storage.round_folder import RECEIPT
from schemas.maths.adapter import SIGNATURE, pq_layout
from schemas.messages.recipes import NAMED, SentRecipe, WeightsRecipeName
from schemas.messages.updates import UpdateManifest
from schemas.wire.compress import is_frame
from schemas.wire.envelope import Envelope, slots, unpack
from schemas.wire.header import Slot
from schemas.wire.streams import decode, encode, stream_slots
from tests.scene.tensors import split_tensors

if TYPE_CHECKING:
    from tests.faults.fault_simulation.world import World

Values = NDArray[np.float32]

_VALUE_BYTES = 4
_STEPS: dict[WeightsRecipeName, float] = {"int8_own_last": 1.01 / 127, "int4_own_last": 1.01 / 7}
"""How far rounding on the way may take a value from what it was, of the largest; scales are rounded too."""

_PUBLISHED_STEPS: dict[WeightsRecipeName, float] = {"int8": 1.01 / 127, "int4": 1.01 / 7}
"""How far published weights may be from what was computed, of the largest difference to those before."""

_SIGNED = {SIGNATURE: Slot((None,), frozenset({"F32"}), optional=True)}


@dataclass(frozen=True)
class Body:
    """An update as sent: its values, (values,), and its recipe; None means plain float32."""

    values: Values
    recipe: SentRecipe | None


def unpacked(body: bytes, rank: int) -> AbstractContextManager[Envelope]:
    """Open an update, or weights."""
    return unpack(
        body,
        encoding="zstd" if is_frame(body) else None,
        expected={**slots(pq_layout(["b0.q"], rank)), **_SIGNED},
        max_bytes=2**24,
        coded={**stream_slots(), **_SIGNED},
    )


@lru_cache(maxsize=256)  # what was sent is looked at again when it is accepted, and when it is sent again
def read_body(body: bytes, rank: int) -> Body:
    """Read an update, or weights, in the order of the layout."""
    layout = pq_layout(["b0.q"], rank)
    with unpacked(body, rank) as envelope:
        if set(layout) <= set(envelope.names):
            return Body(flat({name: envelope.read_float32(name) for name in layout}), None)
        sent = SentRecipe.model_validate(envelope.manifest(UpdateManifest).recipe)
        return Body(flat(dict(decode(envelope, layout, sent.recipe))), sent)


def pack_of(body: bytes, rank: int) -> str | None:
    """Return the digest of the alignment pack that an update names; None if it names none."""
    with unpacked(body, rank) as envelope:
        return envelope.manifest(UpdateManifest).pack


def flat(tensors: dict[str, Values]) -> Values:
    """Concatenate tensors in the order of the layout."""
    return np.concatenate([tensors[name].reshape(-1) for name in sorted(tensors)])


class Meaning:
    """Tracks each client's updates from the trained values to the stored values."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._recipe = NAMED[world.plan.recipe]
        self._layout = pq_layout(["b0.q"], world.plan.rank)
        self.states: dict[tuple[str, int], Values] = {}  # of accepted updates, by client and round
        self._trained: dict[tuple[int, int], list[Values]] = {}  # by agent and round, every attempt
        self._starts: dict[tuple[int, int], list[Values]] = {}  # from what every attempt began
        self._packs: dict[tuple[int, int], str | None] = {}  # by agent and round: of its last coded update
        self._accepted_packs: dict[tuple[str, int], str | None] = {}  # by client and round
        self._lost: dict[tuple[int, int], Values] = {}  # by agent and round: what its coded update left out

    def record_training(self, agent: int, number: int, values: Values, start: Values) -> None:
        """Record the trained values of an agent, and check the weights from which it started."""
        self._trained.setdefault((agent, number), []).append(values)
        self._starts.setdefault((agent, number), []).append(start)
        client = self._client(agent)
        served = self._given_values(client, number)
        if served is None:
            return
        reference = self._counted_before(client, number)
        slack = 0.0
        if reference is not None and self._world.plan.summed is None:
            largest = float(np.abs(served - self.states[client, reference]).max())
            slack = largest * _STEPS.get(self._world.plan.weights_recipe, 0.0)
        if not np.allclose(start, served, rtol=0.0, atol=slack):
            self._world.violated("I16", f"{client} began round {number} from other weights than it was given")

    def published_slack(self, expected: NDArray[Any], number: int) -> float:
        """Return the tolerance of weights for round `number`; 0 = they are no difference.

        They may be a difference to what any client was given before: those of equal weights share it.
        """
        step = _PUBLISHED_STEPS.get(self._world.plan.weights_recipe, 0.0)
        if not step:
            return 0.0
        before = [self._given_values(client, number - 1) for client in self._world.index_of_clients()]
        moved = [float(np.abs(expected - values).max()) for values in before if values is not None]
        return step * max(moved, default=0.0)

    def attempts(self, agent: int, number: int) -> list[tuple[Values, Values]]:
        """Return trained values and start weights of all attempts of an agent in a round."""
        place = (agent, number)
        return list(zip(self._trained.get(place, []), self._starts.get(place, []), strict=True))

    def sent(self, agent: int, number: int, body: bytes) -> None:
        """Check a new update of an agent: its values encode the trained values and the residual."""
        update = read_body(body, self._world.plan.rank)
        if update.recipe is None or not self._recipe.feeds_back:
            return
        client = self._client(agent)
        served = self._given_values(client, number)
        self._packs[agent, number] = pack_of(body, self._world.plan.rank)
        carried = self._carried(agent, client, number)
        for trained in reversed(self._trained.get((agent, number), [])):
            expected = split_tensors(trained - served if served is not None else trained, self._layout)
            if carried is not None:
                expected = split_tensors(flat(expected) + carried, self._layout)
            coded = encode(expected, self._recipe, "recipe", _rounding_seed(expected))
            if np.array_equal(flat(dict(decode(coded, self._layout, self._recipe))), update.values):
                self._lost[agent, number] = flat(expected) - update.values
                if carried is not None:
                    self._world.count("errors carried on")
                return
        self._world.violated("I15", f"agent {agent} sent something else in round {number} than it had to")

    def accepted(self, client: str, number: int, digest: str, state: list[int]) -> None:
        """Compare the stored state of an accepted update with the meaning of its bytes."""
        content = self._world.oracle.body(digest)
        body = read_body(content, self._world.plan.rank)
        self._accepted_packs[client, number] = pack_of(content, self._world.plan.rank)
        values = body.values
        if body.recipe is not None:
            self._world.count("coded updates")
            reference = self._reference(client, number, body.recipe)
            values = values if reference is None else reference + values
        self.states[client, number] = values
        stored_state = self._stored_state(*state)
        if not np.array_equal(stored_state, values):
            self._world.violated("I14", f"what is kept of {client}'s update of round {number} is another")

    def _reference(self, client: str, number: int, sent: SentRecipe) -> Values | None:
        if sent.reference == "none":
            return None
        reference = self._counted_before(client, number) if sent.reference == "own_last" else None
        packs = self._accepted_packs
        if reference is not None and packs.get((client, reference)) != packs.get((client, number)):
            reference = None  # with its pack an update ends too
        return self.states[client, reference] if reference is not None else self._given_values(client, number)

    def _carried(self, agent: int, client: str, number: int) -> Values | None:
        """Return an agent's residual of the round before, if it has the receipt.

        What was learnt under another alignment pack is in other frames, and lost for good.
        """
        if self._packs.get((agent, number - 1)) != self._packs[agent, number]:
            return None
        folder = self._world.disks.folder / f"agent-{agent}"
        has_receipt = any(folder.glob(f"*/rounds/{number - 1:06d}/{RECEIPT}"))
        was_counted = client in self._world.oracle.ledger.counted.get(number - 1, ())
        return self._lost.get((agent, number - 1)) if has_receipt and was_counted else None

    def _counted_before(self, client: str, number: int) -> int | None:
        counted = self._world.oracle.ledger.counted
        return max(
            (candidate for candidate in counted if candidate < number and client in counted[candidate]),
            default=None,
        )

    def _given_values(self, client: str, number: int) -> Values | None:
        ledger_rows = self._world.oracle.ledger.given_weights
        row = ledger_rows.to(client, number)
        return ledger_rows.values[row] if row is not None else None

    def _stored_state(self, payload: int, begin: int) -> Values:
        chunks = self._connection.execute(
            "SELECT data FROM payload_chunks WHERE payload_id = ? ORDER BY begin", (payload,)
        )
        raw = b"".join(data for (data,) in chunks)[begin:]
        return np.frombuffer(raw[: self._world.plan.values * _VALUE_BYTES], "<f4")

    def _client(self, agent: int) -> str:
        clients = {index: client for client, index in self._world.index_of_clients().items()}
        return clients[agent]

    @property
    def _connection(self) -> sqlite3.Connection:
        return self._world.oracle.ledger.connection
