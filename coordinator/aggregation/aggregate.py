"""G = W U in column blocks: each client's weights from everybody's states, in memory that never grows.

U (N, D) are the clients' adapter states in the database, W (N, N) the weights of each module. While a block
of columns is multiplied the one before it is written. Receivers whose rows of G are equal share one payload;
each keeps a head of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol

import numpy as np
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from coordinator import payloads
from coordinator.aggregation.columns import blocks
from coordinator.aggregation.reading import VALUE_BYTES, StoredState, Values, portions, read_columns
from coordinator.crash import may_crash
from coordinator.database import Database
from coordinator.downloads import Stored
from coordinator.logs import logger
from coordinator.payloads import Staged
from coordinator.strategies.base import Cohort, Floats, Module, modules_of
from schemas.maths.adapter import Layout
from schemas.wire.digests import digest_from_hash
from schemas.wire.envelope import MEDIA_TYPE

log = logger(__name__)


class Weights(Protocol):
    """Who is given how much of whom."""

    @property
    def cohort(self) -> Cohort:
        """Whose weights they are, in which order."""

    def of_module(self, module: Module) -> Floats:
        """Give W for one module, (N, N)."""


@dataclass(frozen=True, slots=True)
class Receiver:
    """Who gets weights: its layout, and the beginning of the body they are put in."""

    client: str
    layout: Layout
    head: bytes


@dataclass(frozen=True, slots=True)
class Made:
    """A new body: `head`, then what `staged` has from `begin` on; digest and size are the whole body's."""

    head: bytes
    staged: Staged
    begin: int
    digest: str
    size: int

    def adopted(self, payload_id: int) -> Stored:
        """Say where the body is once what was staged is the payload `payload_id`."""
        return Stored(payload_id, self.digest, self.size, MEDIA_TYPE, head=self.head, begin=self.begin)


def mix(
    database: Database,
    weights: Weights,
    states: Mapping[str, StoredState],
    receivers: Sequence[Receiver],
    *,
    block_bytes: int,
    between: Callable[[], None],
) -> dict[str, Made]:
    """Write the receivers' weights as staged payloads; give each one's body by client.

    `between` is called after every block; what it raises ends the work and what was staged is discarded.
    """
    bodies = begin(database, alike(weights, receivers))
    firsts = [body.receivers[0] for body in bodies]
    try:
        with ThreadPoolExecutor(1, "aggregation-writer") as writer:
            # Reading waits for nobody's writing: SQLite's rollback journal shuts readers out meanwhile.
            product: tuple[list[Body], Values] = [], np.empty((0, 0), np.float32)
            for columns in in_blocks(database, weights, states, firsts, block_bytes=block_bytes):
                written = writer.submit(append, database, *product)
                product = [bodies[place] for place in columns.places], columns.product()
                written.result()
                between()
            append(database, *product)
    except BaseException:
        discard(database, [made for body in bodies for made in body.made().values()])
        raise
    return {client: made for body in bodies for client, made in body.made().items()}


class Written(Protocol):
    """Something that is staged."""

    @property
    def staged(self) -> Staged:
        """What was written so far."""


def discard(database: Database, made: Iterable[Written]) -> None:
    """Forget bodies that will not be given to anybody.

    A database that fails now is no error: there is often another one on its way, and what stays is collected.
    """
    staged = {one.staged.payload_id: one.staged for one in made}
    try:
        payloads.discard(database, staged.values())
    except SQLAlchemyError as error:
        log.warning("discarding-failed", bodies=len(staged), error=type(error).__name__)


@dataclass(frozen=True, slots=True)
class Columns:
    """Some columns of U and what they are multiplied with.

    Attributes:
        places: which of the receivers have these columns, R of them.
        weights: (R, used), over the clients that any of them listens to.
        values: (used, block) float32; only until the next columns are asked for.
    """

    places: list[int]
    weights: Floats
    values: Values

    def product(self) -> Values:
        """Give the receivers' rows of G, (R, block).

        One sum of N products per value, in float32, in an order that BLAS chooses. Where a row of weights
        sums to 1, the error is below 1e-6 of the largest of the values summed. The last bits depend on BLAS
        and its threads, on the size of the block, and on how many receivers share it: replicas that differ
        in these give weights that are equal up to this error.
        """
        return self.weights.astype(np.float32) @ self.values


def in_blocks(
    database: Database,
    weights: Weights,
    states: Mapping[str, StoredState],
    receivers: Sequence[Receiver],
    *,
    block_bytes: int,
) -> Iterator[Columns]:
    """Read what makes G, block by block."""
    clients = [facts.client for facts in weights.cohort.clients]
    layouts = {one.client: one.layout for one in receivers}
    rows = {clients.index(one.client): place for place, one in enumerate(receivers)}
    every = [layouts[one] if one in layouts else states[one].layout for one in clients]
    held = [states.get(client) for client in clients]
    buffer = np.empty(0, "<f4")  # one for all blocks: new memory has to be cleared by the kernel
    for block in blocks(every, rows.keys(), block_bytes, kind=weights.cohort.kind):
        here = [row for row in rows if row in block.begins]
        given = weights.of_module(block.module)[here]  # (here, N)
        used = [place for place in block.begins if given[:, place].any()]
        if buffer.size < len(used) * block.size:
            buffer = np.empty(len(used) * block.size, "<f4")
        values = buffer[: len(used) * block.size].reshape(len(used), block.size)
        read_columns(database, held, block, used, values)
        yield Columns([rows[row] for row in here], given[:, used], values)


class Body:
    """What receivers of equal values get: one payload, beginning with the first one's head."""

    def __init__(self, staged: Staged, receivers: Sequence[Receiver]) -> None:
        self.receivers = receivers
        self._staged = staged
        self._seen = [sha256(one.head) for one in receivers[1:]]

    def look_at(self, values: memoryview) -> None:
        """Hash values for everybody but the first, whose body is what is staged."""
        for seen in self._seen:
            seen.update(values)

    def append(self, session: Session, values: memoryview) -> None:
        """Write values."""
        self._staged.append(session, values)

    def made(self) -> dict[str, Made]:
        """Give what each receiver gets."""
        first, begin = self.receivers[0], len(self.receivers[0].head)
        made = {first.client: Made(first.head, self._staged, begin, self._staged.digest, self._staged.size)}
        for one, seen in zip(self.receivers[1:], self._seen, strict=True):
            size = len(one.head) + self._staged.size - begin
            made[one.client] = Made(one.head, self._staged, begin, digest_from_hash(seen.hexdigest()), size)
        return made


def alike(weights: Weights, receivers: Sequence[Receiver]) -> list[list[Receiver]]:
    """Put receivers together whose rows of G are equal: same layout, same weights in every module of it."""
    rows = {facts.client: row for row, facts in enumerate(weights.cohort.clients)}
    modules = sorted({module for one in receivers for module in modules_of(one.layout)})
    seen = {one.client: sha256(repr(one.layout).encode()) for one in receivers}
    for module in modules:
        given = np.ascontiguousarray(weights.of_module(module))
        for one in receivers:
            seen[one.client].update(given[rows[one.client]])
    groups: dict[bytes, list[Receiver]] = {}
    for one in receivers:
        groups.setdefault(seen[one.client].digest(), []).append(one)
    return list(groups.values())


def begin(database: Database, groups: Sequence[Sequence[Receiver]]) -> list[Body]:
    """Stage a body for each group of receivers of equal values, with the first one's head."""
    bodies = []
    with database.write() as session:
        for receivers in groups:
            staged = payloads.stage(session)
            staged.append(session, receivers[0].head)
            bodies.append(Body(staged, receivers))
    return bodies


def append(database: Database, bodies: Sequence[Body], values: Values) -> None:
    """Write a row of values (bodies, block) to each body."""
    for some in portions(list(zip(bodies, values, strict=True)), values.shape[1] * VALUE_BYTES):
        views = [(body, memoryview(row.astype("<f4", copy=False)).cast("B")) for body, row in some]
        for body, view in views:
            body.look_at(view)
        with database.write() as session:
            for body, view in views:
                body.append(session, view)
        may_crash("block-staged")
