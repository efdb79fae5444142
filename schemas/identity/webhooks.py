"""Sign webhook messages as Standard Webhooks 1.0 describe it: Ed25519 (`v1a`) and HMAC (`v1`). Pure."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable
from urllib.parse import urlsplit

from pydantic import SecretStr

from schemas.identity.plain_http import is_exposed

MESSAGE_ID = "whm_"
"""Beginning of the ids of messages. No signed document begins with it."""


def checked_receiver(url: str) -> str:
    """Return the URL of a webhook; "" = none.

    Raises:
        ValueError: others could read what is sent there, or it is no URL.
    """
    parts = urlsplit(url)
    if url and (parts.scheme not in ("http", "https") or not parts.hostname):
        raise ValueError("it is not a URL; use one like https://example.org/hooks/tessera")
    if is_exposed(url):
        raise ValueError(
            "it is not an https:// address, so others on the network could read messages; use https://"
        )
    return url


def checked_secret(secret: SecretStr | None) -> SecretStr | None:
    """Return a secret whose form was checked; None if it is empty.

    Raises:
        ValueError: it is not of the form that Standard Webhooks prescribe.
    """
    if secret is None or not secret.get_secret_value().strip():
        return None
    secret_bytes(secret)
    return secret


def secret_bytes(secret: SecretStr) -> bytes:
    """Return the key of the HMAC.

    Raises:
        ValueError: the secret is malformed.
    """
    form, _, text = secret.get_secret_value().strip().partition("_")
    try:
        raw = base64.b64decode(text, validate=True)
    except ValueError:
        raw = b""
    if form != "whsec" or not 24 <= len(raw) <= 64:
        raise ValueError(
            "it is not whsec_ and 24 to 64 bytes in base64; set it to the output of: "
            'echo "whsec_$(openssl rand -base64 32)"'
        )
    return raw


def signed_headers(
    message_id: str, body: bytes, now: int, *, sign: Callable[[bytes], bytes], secret: SecretStr | None
) -> dict[str, str]:
    """Return the header fields of one attempt, with a signature of `sign` and, with a secret, an HMAC.

    The signed bytes are `<id>.<now>.<body>`, with `now` in whole seconds since 1970.
    """
    signed = f"{message_id}.{now}.".encode() + body
    # Both kinds in one field: receivers take the one that they know.
    signatures = [f"v1a,{_base64(sign(signed))}"]
    if secret is not None:
        signatures.append(f"v1,{_base64(hmac.digest(secret_bytes(secret), signed, hashlib.sha256))}")
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(now),
        "webhook-signature": " ".join(signatures),
    }


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()
