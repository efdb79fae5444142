"""Replace this agent's key: stopped or cut off anywhere, it goes on, and no key that may count is lost."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from client_agent.errors import CoordinatorRefused
from client_agent.identity.membership import (
    KEY,
    NEXT_KEY,
    Membership,
    naming,
    own_key,
    read_key,
    read_membership,
    waiting_key,
)
from client_agent.storage.archive import keep_copy
from client_agent.storage.files import fsync_folder
from client_agent.transport.client import CoordinatorApi
from schemas.identity.documents import sign
from schemas.identity.keys import name_of
from schemas.messages.enrolment import KeyRotation, rotation_statement

log = logging.getLogger("tessera.agent")

Connect = Callable[[Ed25519PrivateKey], AbstractContextManager[CoordinatorApi]]


def replace_key(connect: Connect, folder: Path, *, at_once: bool = False) -> str:
    """Make a new key and have the old one endorse it; give when the old one is over, RFC 3339.

    Killed or cut off at any point, the same call again finishes what was begun. `connect` gives a connection
    that signs with a key. `at_once` leaves the old key, and those before it, no overlap.

    Raises:
        NotEnrolled: there is no membership.
        KeyRefused: the new key is a client's already.
        CoordinatorRefused: the coordinator does not take the new key.
    """
    member, old, new = read_membership(folder), read_key(folder), own_key(folder, NEXT_KEY)
    said = rotation_statement(
        federation=member.federation_id,
        client=member.client_id,
        old_key=name_of(old),
        public_key=name_of(new),
    )
    request = KeyRotation(
        public_key=name_of(new),
        proof=sign("tessera-rotation-v1", said, new),
        endorsement=sign("tessera-rotation-v1", said, old),
    )
    if at_once:
        request = request.model_copy(update={"overlap_seconds": 0})
    try:
        with connect(old) as api, naming(folder / NEXT_KEY):
            over = api.replace_key(request).old_key_expires_at.isoformat()
    except CoordinatorRefused as refusal:
        # An earlier call was heard, and its answer lost for longer than the overlap.
        if refusal.slug != "key-revoked" or not _is_accepted(connect, new, member):
            raise
        over = "over"
    _take_up_next(folder)
    return over


def key_in_use(connect: Connect, folder: Path) -> Ed25519PrivateKey:
    """Give this agent's key; where replacing it was interrupted, the new one if the coordinator has it.

    Raises:
        NotEnrolled: there is none.
        CoordinatorUnreachable: which key counts cannot be found out now.
    """
    if file := waiting_key(folder):
        if _is_accepted(connect, read_key(folder, NEXT_KEY), read_membership(folder)):
            _take_up_next(folder)
            log.info("replacing the key was interrupted; the new key is in use now")
        else:
            log.warning("%s is not known to the coordinator: `tessera agent rotate-key` finishes that", file)
    return read_key(folder)


def went_over(api: CoordinatorApi, folder: Path) -> bool:
    """Sign with the key that was to replace this agent's, if the coordinator has it by now.

    A request to replace a key may be taken long after it was given up, when the old key is in use again.
    """
    if waiting_key(folder) is None:
        return False
    old, new, member = read_key(folder), read_key(folder, NEXT_KEY), read_membership(folder)
    api.sign_with(new)
    has_it = False
    try:
        has_it = _is_me(api, member)
    finally:
        if not has_it:
            api.sign_with(old)
    if has_it:
        _take_up_next(folder)
        log.info("the coordinator has taken the new key meanwhile; it is in use now")
    return has_it


def _is_accepted(connect: Connect, key: Ed25519PrivateKey, member: Membership) -> bool:
    """Ask whether the coordinator takes a key for this client's."""
    with connect(key) as api:
        return _is_me(api, member)


def _is_me(api: CoordinatorApi, member: Membership) -> bool:
    try:
        return api.me().client_id == member.client_id
    except CoordinatorRefused as refusal:
        if refusal.slug not in ("signature-invalid", "key-revoked"):
            raise
        return False


def _take_up_next(folder: Path) -> None:
    # That the coordinator has the new key is not signed: who stands in between may have made it up.
    keep_copy(folder / KEY)
    os.replace(folder / NEXT_KEY, folder / KEY)
    fsync_folder(folder)
