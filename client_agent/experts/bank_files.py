"""The experts beside a round's served weights: download those that changed, and read the whole bank.

Bodies of experts are immutable and lie in one folder per federation, by digest, so that a round downloads
only experts whose revision is new here.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from client_agent.errors import AdapterUnreadable, DownloadDamaged
from client_agent.rounds.client import Session
from client_agent.rounds.served_weights import read_weights
from client_agent.storage.files import write_durably
from client_agent.storage.round_folder import (
    BANK,
    EXPERT_BODIES,
    FINAL_BANK,
    WEIGHTS,
    RoundFolder,
    RoundFolders,
)
from client_agent.storage.tensor_metadata import open_body
from schemas.maths.adapter import Layout
from schemas.maths.bank import SHARED, bank_tensor, bank_tensors
from schemas.messages.experts import ExpertManifest
from schemas.messages.updates import BankIndex, ExpertReference, WeightsManifest
from schemas.wire.digests import digest_of
from schemas.wire.envelope import slots
from schemas.wire.errors import BodyRefused

log = logging.getLogger(__name__)

Arrays = dict[str, NDArray[np.float32]]


def download_bank(
    session: Session, rounds: RoundFolders, folder: RoundFolder, body: bytes, layout: Layout
) -> None:
    """Download the experts that a body of weights names and that are not here, and store its index.

    Experts that no stored round names are deleted.

    Raises:
        AdapterUnreadable: the body names no bank, or an expert is not the one that it names.
        DownloadDamaged: an expert has another digest.
    """
    index = index_of_body(body, layout)
    store_experts(session, index, layout)
    folder.write(BANK, index.model_dump_json().encode())
    used = {entry.digest for entry in index.experts}
    for stored in rounds.newest_first():
        if stored.has(BANK):
            used |= {entry.digest for entry in read_index(stored).experts}
    # After the index is written: a crash before it leaves experts too many, never one too few.
    _forget_unused(session.home, {_name(digest) for digest in used if digest is not None})


def store_experts(session: Session, index: BankIndex, layout: Layout) -> None:
    """Download the experts of an index that are not stored here.

    Raises:
        AdapterUnreadable: a body is not that of the expert.
        DownloadDamaged: it has another digest.
    """
    fetched = octets = 0
    for entry in index.experts:
        if entry.digest is None or _is_stored(session.home, entry.digest):
            continue
        body = session.api.expert(session.federation_id, entry.expert, entry.revision)
        if body.digest != entry.digest:
            raise DownloadDamaged(f"revision {entry.revision} of expert {entry.expert}")
        # Read before it is stored, since the digest only says that it is the body the index names.
        _read_expert(body.body, layout, entry)
        write_durably(_file(session.home, entry.digest), body.body)
        fetched, octets = fetched + 1, octets + len(body.body)
    log.info("experts: %d of %d downloaded, %d bytes", fetched, len(index.experts), octets)


def store_final_bank(session: Session, body: bytes, layout: Layout) -> None:
    """Store the experts beside the final weights; `layout` is that of one expert.

    Raises:
        AdapterUnreadable, DownloadDamaged: see `store_experts`.
    """
    index = index_of_body(body, layout)
    store_experts(session, index, layout)
    write_durably(session.home / FINAL_BANK, index.model_dump_json().encode())


def index_of_body(body: bytes, layout: Layout) -> BankIndex:
    """Return the index of the bank in a body of weights.

    Raises:
        AdapterUnreadable: the body is damaged, or names no bank.
    """
    try:
        with open_body(body, slots(layout)) as envelope:
            index = envelope.manifest(WeightsManifest).bank
    except BodyRefused as refusal:
        raise AdapterUnreadable(f"the weights are damaged, or not of this plan ({refusal})") from refusal
    if index is None:
        raise AdapterUnreadable("the weights name no bank of experts; update the coordinator")
    return index


def read_index(folder: RoundFolder) -> BankIndex:
    """Read the index with which a round began."""
    return BankIndex.model_validate_json(folder.read(BANK))


def read_final_index(home: Path) -> BankIndex:
    """Read the index of the final weights."""
    return BankIndex.model_validate_json((home / FINAL_BANK).read_bytes())


def experts_of(index: BankIndex) -> tuple[int, ...]:
    """Return the ordinals of all experts, the shared one first."""
    return (SHARED, *sorted(entry.expert for entry in index.experts))


def read_bank(home: Path, folder: RoundFolder, layout: Layout) -> Arrays:
    """Read all experts with which a round began, as `x<k>.<tensor>`; zeros stand for the start.

    `layout` is that of one expert, with plain names.

    Raises:
        AdapterUnreadable: a body is damaged, or missing.
    """
    return bank_state(home, folder.read(WEIGHTS), read_index(folder), layout)


def bank_state(home: Path, body: bytes, index: BankIndex, layout: Layout) -> Arrays:
    """Return the bank of a body of weights and its index; see `read_bank`."""
    bank = bank_tensors(SHARED, read_weights(body, layout))
    for entry in index.experts:
        if entry.digest is None:
            # Nobody has trained this expert yet; zeros are what every client begins with.
            values: Arrays = {name: np.zeros(shape, np.float32) for name, shape in layout.items()}
        else:
            values = _read_expert(_stored(home, entry), layout, entry)
        bank |= bank_tensors(entry.expert, values)
    return bank


def plain_names(bank: Mapping[str, NDArray[np.float32]]) -> Arrays:
    """Return a bank's tensors as they are summed: those of the shared expert by plain names."""
    prefix = bank_tensor(SHARED, "")
    return {name.removeprefix(prefix): values for name, values in bank.items()}


def _read_expert(body: bytes, layout: Layout, entry: ExpertReference) -> Arrays:
    try:
        with open_body(body, slots(layout)) as envelope:
            manifest = envelope.manifest(ExpertManifest)
            if (manifest.expert, manifest.round) != (entry.expert, entry.revision):
                raise AdapterUnreadable(f"the body of expert {entry.expert} is that of {manifest.expert}")
            return {name: envelope.read_float32(name) for name in layout}
    except BodyRefused as refusal:
        raise AdapterUnreadable(
            f"expert {entry.expert} is damaged, or not of this plan ({refusal})"
        ) from refusal


def _is_stored(home: Path, digest: str) -> bool:
    """Whether an expert is here, and undamaged."""
    file = _file(home, digest)
    # Hashed again, because a damaged file would otherwise stop every later round.
    return file.is_file() and digest_of(file.read_bytes()) == digest


def _stored(home: Path, entry: ExpertReference) -> bytes:
    try:
        return _file(home, entry.digest or "").read_bytes()
    except OSError as error:
        raise AdapterUnreadable(
            f"revision {entry.revision} of expert {entry.expert} is missing ({error.strerror}); run the "
            "agent again, which downloads it"
        ) from error


def _file(home: Path, digest: str) -> Path:
    return home / EXPERT_BODIES / _name(digest)


def _name(digest: str) -> str:
    return f"{digest.removeprefix('sha256:')}.safetensors"


def _forget_unused(home: Path, used: set[str]) -> None:
    folder = home / EXPERT_BODIES
    for file in folder.iterdir() if folder.is_dir() else ():
        if file.name not in used:
            file.unlink(missing_ok=True)
