"""The weights that a client is served: their files, and the forms in which strategies read and load them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from client_agent.errors import AdapterUnreadable
from client_agent.storage.round_folder import FINAL_WEIGHTS, WEIGHTS, RoundFolder, RoundFolders
from client_agent.storage.tensor_metadata import open_body
from schemas.maths.adapter import Layout, in_order
from schemas.maths.factors import State, resized
from schemas.messages.updates import WeightsManifest
from schemas.wire.digests import digest_of
from schemas.wire.envelope import Envelope, any_rank, slots
from schemas.wire.errors import BodyRefused

if TYPE_CHECKING:
    from client_agent.adapters.base import Adapter
    from client_agent.rounds.client import Session
    from client_agent.rounds.opened_round import OpenedRound
    from client_agent.rounds.sum_input import RoundResult

Arrays = dict[str, NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class StoredWeights:
    """Weights on disk: those with which a round began, or the final ones.

    Attributes:
        home: the folder of the federation.
        folder: the round; for final weights the last one.
        session: the connection, by which lost files are downloaded again; None = offline.
    """

    home: Path
    folder: RoundFolder
    is_final: bool = False
    session: Session | None = None

    @property
    def body(self) -> bytes:
        return (self.home / FINAL_WEIGHTS).read_bytes() if self.is_final else self.folder.read(WEIGHTS)

    @property
    def rounds(self) -> RoundFolders:
        return RoundFolders(self.home / "rounds")


@dataclass(frozen=True, slots=True)
class ServedForm:
    """How the weights of a strategy are read: by default, the adapter's tensors and nothing else.

    Attributes:
        mixed_ranks: whether clients of one base model may have adapters of different ranks; weights are then
            truncated or padded to the rank of the layout.
    """

    mixed_ranks: bool = False

    def read(self, body: bytes, layout: Layout) -> Arrays:
        """Return the start values of the adapter; zeros where none are served.

        Raises:
            AdapterUnreadable: the body is damaged or of another layout.
        """
        return read_weights(body, layout, mixed_ranks=self.mixed_ranks)

    def is_initial(self, body: bytes, layout: Layout) -> bool:
        """Whether weights are those of a client none of whose updates counts.

        Raises:
            AdapterUnreadable: the body is damaged or of another layout.
        """
        with _opened(body, layout, mixed_ranks=self.mixed_ranks) as envelope:
            return envelope.manifest(WeightsManifest).initial

    def load_beside(self, adapter: Adapter, served: StoredWeights) -> None:
        """Set what the weights change in the model beside the adapter's own tensors.

        Raises:
            AdapterUnreadable: the weights are damaged or of another layout.
            BaseDeltaMissing: they add to a base delta that is not stored here.
        """

    def values(self, adapter: Adapter, served: StoredWeights) -> State:
        """Return the start values of an injected adapter.

        Raises:
            AdapterUnreadable: the weights are damaged or of another layout.
        """
        return self.read(served.body, adapter.layout)

    def complete(self, work: OpenedRound, content: bytes, layout: Callable[[], Layout]) -> bytes:
        """Return downloaded weights with all that later steps need without a connection.

        `layout` returns that of what this client last sent.
        """
        return content

    def complete_final(
        self, session: Session, round_number: int, digest: str, content: bytes, layout: Callable[[], Layout]
    ) -> bytes:
        """Return the final weights with all that is needed without earlier rounds and without a connection.

        `digest` is that of the coordinator's manifest; `layout` returns that of this client's first adapter.
        """
        return content

    def reference_digest(self, folder: RoundFolder, content: bytes) -> str:
        """Return the digest by which the coordinator knows the weights of a round."""
        return digest_of(content)

    def surroundings(self, folder: RoundFolder) -> str:
        """Return the digest of what acts in the model beside the adapter; "" = nothing does."""
        return ""

    def summed_layout(self, work: OpenedRound) -> Layout:
        """Return the layout of what members of a sum add up, by the adapter that this client has trained."""
        adapter = work.trained.of(work.folder).adapter
        return in_order({name: values.shape for name, values in adapter.items()})

    def summed_result(self, work: OpenedRound, result: RoundResult) -> RoundResult:
        """Complete the result of a round's training by the weights that were served, for a sum."""
        return replace(result, served=self.read(work.folder.read(WEIGHTS), result.layout))


def read_weights(body: bytes, layout: Layout, *, mixed_ranks: bool = False) -> Arrays:
    """Decode served weights; with `mixed_ranks` of any rank, truncated or padded to the layout's.

    Raises:
        AdapterUnreadable: the body is damaged or of another layout.
    """
    with _opened(body, layout, mixed_ranks=mixed_ranks) as envelope:
        return {name: resized(envelope.read_float32(name), shape) for name, shape in layout.items()}


@contextmanager
def _opened(body: bytes, layout: Layout, *, mixed_ranks: bool) -> Iterator[Envelope]:
    try:
        with open_body(body, any_rank(layout) if mixed_ranks else slots(layout)) as envelope:
            yield envelope
    except BodyRefused as refusal:
        raise AdapterUnreadable(
            f"the stored weights are damaged, or not of this plan ({refusal}); "
            "`--round` chooses another round"
        ) from refusal
