"""Replace the agent's key: resumable after a crash at any point, without losing a key that may be valid."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from client_agent.agent_entries import KEY, NEXT_KEY
from client_agent.errors import CoordinatorRefused
from client_agent.identity.agent_folder import Membership, read_membership
from client_agent.identity.membership import load_or_create_key, name_refused_key, pending_key_file, read_key
from client_agent.storage.archive import keep_copy
from client_agent.storage.files import fsync_folder
from client_agent.transport.client import CoordinatorApi
from schemas.identity.documents import sign
from schemas.identity.keys import name_of
from schemas.messages.enrolment import KeyRotation, rotation_statement

log = logging.getLogger("tessera.agent")

Connect = Callable[[Ed25519PrivateKey], AbstractContextManager[CoordinatorApi]]


def replace_key(connect: Connect, folder: Path, *, at_once: bool = False) -> str | None:
    """Create a key, endorse it with the old one, and return when the old key expires (RFC 3339).

    After a crash or a lost answer, a second call completes the rotation. `connect` opens a connection that
    signs with a key. `at_once` revokes the old key and all earlier ones without overlap. Returns None if the
    old key is no longer valid.

    Raises:
        NotEnrolled: there is no membership.
        KeyRefused: the new key belongs to a client already.
        CoordinatorRefused: the coordinator does not accept the new key.
    """
    member, old, new = read_membership(folder), read_key(folder), load_or_create_key(folder, NEXT_KEY)
    statement = rotation_statement(
        federation_id=member.federation_id,
        client_id=member.client_id,
        old_key=name_of(old),
        public_key=name_of(new),
    )
    request = KeyRotation(
        public_key=name_of(new),
        # Both keys sign: the new one proves possession, the old one the client's consent.
        proof=sign("tessera-rotation-v1", statement, new),
        endorsement=sign("tessera-rotation-v1", statement, old),
    )
    if at_once:
        request = request.model_copy(update={"overlap_seconds": 0})
    try:
        with connect(old) as api, name_refused_key(folder / NEXT_KEY):
            old_key_end = api.replace_key(request).old_key_expires_at.isoformat()
        expires_at = None if at_once else old_key_end
    except CoordinatorRefused as refusal:
        # An earlier call succeeded, its answer was lost, and the overlap has passed since.
        if refusal.slug != "key-revoked" or not _is_accepted(connect, new, member):
            raise
        expires_at = None
    _take_up_next(folder)
    return expires_at


def current_key(connect: Connect, folder: Path) -> Ed25519PrivateKey:
    """Return the agent's key; after an interrupted rotation, the new key if the coordinator accepts it.

    Raises:
        NotEnrolled: there is no key.
        CoordinatorUnreachable: an interrupted rotation cannot be resolved now.
    """
    if file := pending_key_file(folder):
        if _is_accepted(connect, read_key(folder, NEXT_KEY), read_membership(folder)):
            _take_up_next(folder)
            log.info("key rotation: completed after an interruption; the new key is in use")
        else:
            log.warning(
                "key rotation: interrupted (%s is not known to the coordinator); complete it with "
                "`tessera agent rotate-key`",
                file,
            )
    return read_key(folder)


def switch_to_accepted_key(api: CoordinatorApi, folder: Path) -> bool:
    """Switch to the pending new key if the coordinator accepts it by now. Return whether it does.

    A delayed rotation request may arrive after the agent stopped waiting and uses the old key again.
    """
    if pending_key_file(folder) is None:
        return False
    old, new, member = read_key(folder), read_key(folder, NEXT_KEY), read_membership(folder)
    # The coordinator tells only by accepting a signature which key it has.
    api.sign_with(new)
    accepted = False
    try:
        accepted = _answers_for(api, member)
    finally:
        if not accepted:
            api.sign_with(old)
    if accepted:
        _take_up_next(folder)
        log.info("key rotation: completed (the coordinator accepted the pending key); the new key is in use")
    return accepted


def _is_accepted(connect: Connect, key: Ed25519PrivateKey, member: Membership) -> bool:
    with connect(key) as api:
        return _answers_for(api, member)


def _answers_for(api: CoordinatorApi, member: Membership) -> bool:
    try:
        return api.me().client_id == member.client_id
    except CoordinatorRefused as refusal:
        if refusal.slug not in ("signature-invalid", "key-revoked"):
            raise
        return False


def _take_up_next(folder: Path) -> None:
    # The coordinator's answer is not signed, and a proxy may have forged it: the old key stays recoverable.
    keep_copy(folder / KEY)
    # One rename: at any time exactly one file is the key.
    os.replace(folder / NEXT_KEY, folder / KEY)
    fsync_folder(folder)
