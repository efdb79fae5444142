"""Load the coordinator's Ed25519 key and sign with it. The database has only the public key, by which a
replica with another key is refused.
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

from coordinator.db.engine import Database, database_time
from coordinator.db.tables.identity import ServerIdentityRow
from coordinator.errors import SettingsUnusable
from coordinator.storage.private_files import write_private
from schemas.identity.documents import Document, Purpose, sign
from schemas.identity.keys import decode, encode, name_of, thumbprint
from schemas.identity.webhooks import MESSAGE_ID

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
        return sign(purpose, document, self._key)

    def sign_webhook(self, message: bytes) -> bytes:
        """Sign a message for the webhook.

        A message begins with its id, and a signed document with its purpose: neither passes as the other.
        """
        if not message.startswith(MESSAGE_ID.encode()):
            raise ValueError("not a message for the webhook")
        return self._key.sign(message)

    def nonce(self, now: datetime) -> str:
        """Return a nonce for an enrolment, which every replica accepts for an hour."""
        payload = int(now.timestamp()).to_bytes(_TIME_BYTES, "big") + secrets.token_bytes(_MAC_BYTES)
        return encode(payload + self._mac(payload))

    def issued(self, nonce: str, now: datetime) -> bool:
        """Whether a nonce was issued by this key within the last hour."""
        try:
            raw = decode(nonce)
        except ValueError:
            return False
        payload, mac = raw[:-_MAC_BYTES], raw[-_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(payload)):
            return False
        age = now.timestamp() - int.from_bytes(payload[:_TIME_BYTES], "big")
        # The clock of the replica that issued it may be a second ahead.
        return -1 <= age <= _NONCE_LIFE.total_seconds()

    def _mac(self, payload: bytes) -> bytes:
        return hmac.digest(self._seed, _NONCE_PURPOSE + payload, hashlib.sha256)[:_MAC_BYTES]


def load(database: Database, configured: SecretStr | None) -> ServerKey:
    """Load the key from the settings, or from the file beside an SQLite database, created if missing.

    Raises:
        SettingsUnusable: no usable key, or the database belongs to another key.
    """
    key = ServerKey(_seed(database, configured))
    with database.write() as session:
        _claim(session, key)
    return key


def _claim(session: Session, key: ServerKey) -> None:
    row = session.get(ServerIdentityRow, _ONLY_ROW, with_for_update=True)
    if row is None:
        session.add(ServerIdentityRow(id=_ONLY_ROW, public_key=key.public, created_at=database_time(session)))
    elif row.public_key != key.public:
        raise SettingsUnusable(
            f"TESSERA_SIGNING_KEY: this database belongs to the key with thumbprint "
            f"{thumbprint(row.public_key)}, not to {key.id}; set the same key on all replicas"
        )


def _seed(database: Database, configured: SecretStr | None) -> bytes:
    if configured is not None:
        return _read(configured.get_secret_value(), "TESSERA_SIGNING_KEY")
    if not database.is_sqlite:
        raise SettingsUnusable(
            "TESSERA_SIGNING_KEY is not set; generate one key for all replicas: "
            "head -c 32 /dev/urandom | base64 | tr '+/' '-_' | tr -d '='"
        )
    file = Path(f"{database.url.database}-signing-key")
    if not file.exists():
        write_private(file, encode(secrets.token_bytes(_SEED_BYTES)) + "\n")
    return _read(file.read_text("utf-8"), str(file))


def _read(text: str, source: str) -> bytes:
    try:
        seed = decode(text.strip())
    except ValueError:
        seed = b""
    if len(seed) != _SEED_BYTES:
        raise SettingsUnusable(f"{source}: not 32 bytes in base64url without padding; generate a new key")
    return seed
