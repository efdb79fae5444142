"""Keep what has to be known later of an update that was sent: what the coordinator made of it, what it lost.

Whatever is kept names the update that it belongs to, so that what another body left behind is
never taken for it.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from client_agent.adapters.base import State
from client_agent.rounds.participant import Participant
from client_agent.rounds.train import Trained
from client_agent.storage.round_folder import RECEIPT, SENT, TRAINED, RoundFolder
from schemas.maths.adapter import Layout, in_order
from schemas.messages.base import Digest
from schemas.messages.updates import Manifest, Receipt
from schemas.wire.digests import digest_of
from schemas.wire.envelope import pack, slots, unpack
from schemas.wire.refusals import BodyRefused

Arrays = dict[str, NDArray[np.float32]]
_LARGEST_FILE = 2**33


class _KeptManifest(Manifest):
    """What a file beside an update says: which update it belongs to."""

    kind: Literal["kept"] = "kept"
    update: Digest


def own_last(who: Participant, number: int) -> tuple[State, str] | None:
    """Give what the coordinator made of this client's last update before a round, and its digest.

    None without one that it has confirmed, or where what it made of it is not known here.
    """
    last = who.rounds.newest_with(RECEIPT, before=number)
    if last is None or not last.has(TRAINED):
        return None
    receipt = Receipt.model_validate_json(last.read(RECEIPT))
    trained = Trained.read(last.path / TRAINED).adapter
    layout = in_order({name: values.shape for name, values in trained.items()})
    sent = kept(last, SENT, receipt.digest, layout) if not receipt.clipped else None
    return (sent, receipt.digest) if sent is not None else None


def confirmed(who: Participant, number: int, held: str | None) -> tuple[RoundFolder, Receipt] | None:
    """Find the last update before a round that has a receipt, or the one that is `held`."""
    for one in who.rounds.newest_first():
        if one.number < number and one.has(RECEIPT):
            receipt = Receipt.model_validate_json(one.read(RECEIPT))
            if held in (None, receipt.digest):
                return one, receipt
    return None


def keep(folder: RoundFolder, file: str, values: State, who: Participant, body: bytes) -> None:
    """Write down values that belong to an update, whose body this is."""
    said = _KeptManifest(federation=who.federation, recipe={}, update=digest_of(body))
    folder.write(file, pack(dict(values), said))


def kept(folder: RoundFolder, file: str, update: str, layout: Layout) -> Arrays | None:
    """Read what is kept of an update; None where it is another's, damaged, or of another layout."""
    if not folder.has(file):
        return None
    content = folder.read(file)
    try:
        with unpack(content, encoding=None, expected=slots(layout), max_bytes=_LARGEST_FILE) as found:
            if found.manifest(_KeptManifest).update != update:
                return None
            return {name: found.read_float32(name) for name in layout}
    except BodyRefused:
        return None
