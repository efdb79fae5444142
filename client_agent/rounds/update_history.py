"""Values stored beside a sent update: the state that the coordinator holds, and the residual.

Every file names its update, so that values of another body are never mistaken for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from client_agent.rounds.training_result import TrainingResults
from client_agent.storage.round_folder import RECEIPT, RESIDUAL, SENT, TRAINED, RoundFolder, RoundFolders
from client_agent.storage.tensor_metadata import open_body
from schemas.maths.adapter import Layout, in_order
from schemas.maths.factors import State, resized
from schemas.messages.base import Digest
from schemas.messages.updates import Manifest, Receipt
from schemas.wire.digests import digest_of
from schemas.wire.envelope import any_rank, pack, slots
from schemas.wire.errors import BodyRefused

Arrays = dict[str, NDArray[np.float32]]


class _StoredManifest(Manifest):
    """The manifest of a file beside an update; `pack` is the alignment pack that it was learnt under."""

    kind: Literal["kept"] = "kept"
    update: Digest
    pack: Digest | None = None


class CountedState(NamedTuple):
    """The state that the coordinator holds of an update, and the update's digest."""

    values: State
    digest: str


def last_counted_state(
    rounds: RoundFolders, trained: TrainingResults, round_number: int
) -> CountedState | None:
    """Return the state of the last update before a round; None without a receipt or a stored state."""
    last = rounds.newest_with(RECEIPT, before=round_number)
    if last is None or not last.has(TRAINED):
        return None
    receipt = Receipt.model_validate_json(last.read(RECEIPT))
    layout = in_order({name: values.shape for name, values in trained.of(last).adapter.items()})
    # After clipping the coordinator's state is not known here.
    values = stored_values(last, SENT, receipt.digest, layout) if not receipt.clipped else None
    return CountedState(values, receipt.digest) if values is not None else None


def confirmed(
    rounds: RoundFolders, round_number: int, digest: str | None
) -> tuple[RoundFolder, Receipt] | None:
    for folder in rounds.newest_first():
        if folder.number < round_number and folder.has(RECEIPT):
            receipt = Receipt.model_validate_json(folder.read(RECEIPT))
            if digest in (None, receipt.digest):
                return folder, receipt
    return None


def store_values(
    folder: RoundFolder, file: str, values: State, federation_id: str, body: bytes, pack_digest: str | None
) -> None:
    manifest = _StoredManifest(federation=federation_id, recipe={}, update=digest_of(body), pack=pack_digest)
    folder.write(file, pack(dict(values), manifest))


def stored_values(
    folder: RoundFolder, file: str, update: str, layout: Layout, *, mixed_ranks: bool = False
) -> Arrays | None:
    """Read the values of an update; None if they are another's, damaged, or of another layout.

    With `mixed_ranks`, A and B of another rank are cut, or padded with zeros, to the layout's.
    """
    return _values(folder, file, update, layout, lambda _: True, mixed_ranks=mixed_ranks)


def stored_residual(
    folder: RoundFolder, update: str, layout: Layout, pack_digest: str | None, *, mixed_ranks: bool = False
) -> Arrays | None:
    """Read the residual of an update; None if it was learnt under another pack, whose frames differ, too."""
    return _values(
        folder,
        RESIDUAL,
        update,
        layout,
        lambda manifest: manifest.pack == pack_digest,
        mixed_ranks=mixed_ranks,
    )


def _values(
    folder: RoundFolder,
    file: str,
    update: str,
    layout: Layout,
    is_wanted: Callable[[_StoredManifest], bool],
    *,
    mixed_ranks: bool,
) -> Arrays | None:
    if not folder.has(file):
        return None
    content = folder.read(file)
    try:
        with open_body(content, any_rank(layout) if mixed_ranks else slots(layout)) as envelope:
            manifest = envelope.manifest(_StoredManifest)
            # A repeated round may have left values of another body.
            if manifest.update != update or not is_wanted(manifest):
                return None
            return {name: resized(envelope.read_float32(name), shape) for name, shape in layout.items()}
    except BodyRefused:
        return None
