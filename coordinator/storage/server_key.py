"""The coordinator's own Ed25519 key: where it comes from, and what it signs. It is never in the database.

The database knows the public key alone, so that a replica with another key is refused when it starts.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from datetime import datetime, timedelta
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import SecretStr
from sqlalchemy.orm import Session

from coordinator.db.engine import Database, now
from coordinator.db.tables.identity import ServerIdentityRow
from coordinator.errors import SettingsUnusable
from coordinator.storage.private_files import write_private
from schemas.identity.documents import Document, Purpose, sign
from schemas.identity.keys import decode, encode, name_of, thumbprint

_SEED_BYTES = 32
_ONLY_ROW = 1
_NONCE_LIFE = timedelta(hours=1)
_NONCE_PURPOSE = b"tessera enrolment nonce v1\0"
_MAC_BYTES = 16
_TIME_BYTES = 8


class ServerKey:
    """The key of this coordinator.

    Attributes:
        public: the public key, base64url.
        id: its thumbprint, which enrolment tokens pin.
    """

    def __init__(self, seed: bytes) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self._seed = seed
        self.public = name_of(self._key)
        self.id = thumbprint(self.public)

    def sign(self, purpose: Purpose, document: Document) -> str:
        """Give the signature of a document."""
        return sign(purpose, document, self._key)

    def nonce(self, moment: datetime) -> str:
        """Make a nonce that a newcomer has to sign; every replica knows it as its own for an hour."""
        said = int(moment.timestamp()).to_bytes(_TIME_BYTES, "big") + secrets.token_bytes(_MAC_BYTES)
        return encode(said + self._mac(said))

    def knows(self, nonce: str, moment: datetime) -> bool:
        """Say whether a nonce was made here within the last hour."""
        try:
            raw = decode(nonce)
        except ValueError:
            return False
        said, mac = raw[:-_MAC_BYTES], raw[-_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(said)):
            return False
        age = moment.timestamp() - int.from_bytes(said[:_TIME_BYTES], "big")
        return -1 <= age <= _NONCE_LIFE.total_seconds()

    def _mac(self, said: bytes) -> bytes:
        return hmac.digest(self._seed, _NONCE_PURPOSE + said, hashlib.sha256)[:_MAC_BYTES]


def load(database: Database, configured: SecretStr | None) -> ServerKey:
    """Give the key that the settings hold, or that of the file beside an SQLite database, made if missing.

    Raises:
        SettingsUnusable: there is none, it is not usable, or the database belongs to another.
    """
    key = ServerKey(_seed(database, configured))
    with database.write() as session:
        _claim(session, key)
    return key


def _claim(session: Session, key: ServerKey) -> None:
    row = session.get(ServerIdentityRow, _ONLY_ROW, with_for_update=True)
    if row is None:
        session.add(ServerIdentityRow(id=_ONLY_ROW, public_key=key.public, created_at=now(session)))
    elif row.public_key != key.public:
        raise SettingsUnusable(
            f"TESSERA_SIGNING_KEY: this database belongs to the key with thumbprint "
            f"{thumbprint(row.public_key)}, and this is {key.id}; give all replicas the same one"
        )


def _seed(database: Database, configured: SecretStr | None) -> bytes:
    if configured is not None:
        return _read(configured.get_secret_value(), "TESSERA_SIGNING_KEY")
    if not database.is_sqlite:
        raise SettingsUnusable(
            "TESSERA_SIGNING_KEY: not set; make one for all replicas: "
            "head -c 32 /dev/urandom | base64 | tr '+/' '-_' | tr -d '='"
        )
    file = Path(f"{database.url.database}-signing-key")
    if not file.exists():
        write_private(file, encode(secrets.token_bytes(_SEED_BYTES)) + "\n")
    return _read(file.read_text("utf-8"), str(file))


def _read(text: str, where: str) -> bytes:
    try:
        seed = decode(text.strip())
    except ValueError:
        seed = b""
    if len(seed) != _SEED_BYTES:
        raise SettingsUnusable(f"{where}: not 32 bytes in base64url without padding")
    return seed
