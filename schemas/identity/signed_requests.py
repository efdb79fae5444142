"""Signed requests: one fixed profile of RFC 9421, parsed strictly. No clock, no socket.

Covered components: `@method`, `@authority`, `@path`, `@query`, `content-digest` (RFC 9530) with a body, and
`prefer` and `range` exactly when present. Parameters: created, expires, nonce, keyid (the public key),
alg="ed25519", tag="tessera-v1", under the one label `sig1`.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from schemas.identity.keys import is_signed_by, name_of

LIFE_SECONDS = 30
"""How long a signature may live: the head of a request has to arrive within it, a body may take longer."""

SKEW_SECONDS = 120
"""How far two clocks may differ."""

ACCEPTED_SECONDS = LIFE_SECONDS + 2 * SKEW_SECONDS
"""How long one signature can be timely at most: that of the clock which is furthest ahead."""

LABEL = "sig1"
TAG = "tessera-v1"
_ALWAYS = frozenset({"@method", "@authority", "@path", "@query"})
_DIGEST = "content-digest"
WHEN_PRESENT = ("prefer", "range")
"""Header fields that are covered exactly when a request has them."""

_COVERED = r'"[a-z@-]+"(?: "[a-z@-]+")*'
_PARAMETERS = r'(?:;[a-z]+=(?:"[\x21\x23-\x5b\x5d-\x7e]*"|[0-9]+))+'
_INPUT = re.compile(rf"{LABEL}=(\(({_COVERED})\)({_PARAMETERS}))")
_PARAMETER = re.compile(r';([a-z]+)=(?:"([^"]*)"|([0-9]+))')
_SIGNATURE = re.compile(rf"{LABEL}=:([A-Za-z0-9+/]{{86}}==):")
_NONCE = re.compile(r"[A-Za-z0-9_-]{16,64}")
_TEXTS = {"nonce", "keyid", "alg", "tag"}
_NUMBERS = {"created", "expires"}
_MOST_DIGITS = 12
_LONGEST = 1024


class ProfileBroken(ValueError):
    """The signature header fields do not follow the profile; the message names the fault."""


@dataclass(frozen=True, slots=True)
class Target:
    """The signed parts of a request; `path` and `query` as sent, the query without its question mark.

    `content_digest`, `prefer` and `range` are header fields, None if absent.
    """

    method: str
    authority: str
    path: str
    query: str
    content_digest: str | None
    prefer: str | None = None
    range: str | None = None

    def values(self, covered: Iterable[str]) -> dict[str, str]:
        """Return the values of covered components, in their order."""
        every = {
            "@method": self.method,
            "@authority": self.authority.lower(),
            # An empty path is sent as a slash (RFC 9421, section 2.2.6).
            "@path": self.path or "/",
            "@query": f"?{self.query}",
            _DIGEST: self.content_digest or "",
            "prefer": (self.prefer or "").strip(),
            "range": (self.range or "").strip(),
        }
        return {name: every[name] for name in covered}


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """An unverified request signature, parsed from its header fields; times in seconds since 1970."""

    covered: tuple[str, ...]
    parameters: str
    created: int
    expires: int
    nonce: str
    keyid: str
    signature: bytes

    @property
    def covers_body(self) -> bool:
        return _DIGEST in self.covered

    def covers(self, field: str) -> bool:
        return field in self.covered

    def is_timely(self, now: float) -> bool:
        """Whether the signature is valid at `now`, with SKEW_SECONDS of clock skew allowed."""
        # Clocks of silos differ; nonces keep the longer time from allowing repetitions.
        return self.created - SKEW_SECONDS <= now <= self.expires + SKEW_SECONDS

    def is_by(self, key: Ed25519PublicKey, target: Target) -> bool:
        return is_signed_by(key, self.signature, signature_base(target.values(self.covered), self.parameters))


def sign(target: Target, key: Ed25519PrivateKey, *, created: int, nonce: str) -> dict[str, str]:
    """Return the header fields of a signature that is valid for LIFE_SECONDS after `created`."""
    fields = {_DIGEST: target.content_digest or None, "prefer": target.prefer, "range": target.range}
    present = [name for name, value in fields.items() if value is not None]
    covered = ("@method", "@authority", "@path", "@query", *present)
    names = " ".join(f'"{name}"' for name in covered)
    parameters = (
        f'({names});created={created};expires={created + LIFE_SECONDS};nonce="{nonce}"'
        f';keyid="{name_of(key)}";alg="ed25519";tag="{TAG}"'
    )
    signature = base64.b64encode(key.sign(signature_base(target.values(covered), parameters))).decode()
    return {"Signature-Input": f"{LABEL}={parameters}", "Signature": f"{LABEL}=:{signature}:"}


def read(signature_input: str, signature: str) -> SignedRequest:
    """Parse the two header fields.

    Raises:
        ProfileBroken: label, components, parameters or form differ from the profile.
    """
    # The length bounds the work of the pattern.
    inputs = _INPUT.fullmatch(signature_input) if len(signature_input) <= _LONGEST else None
    signed = _SIGNATURE.fullmatch(signature)
    if inputs is None or signed is None:
        raise ProfileBroken(f"Signature-Input and Signature must each have the one label {LABEL}")
    covered = tuple(inputs.group(2).replace('"', "").split(" "))
    if len(set(covered)) != len(covered) or set(covered) - {_DIGEST, *WHEN_PRESENT} != _ALWAYS:
        raise ProfileBroken(
            'cover "@method" "@authority" "@path" "@query", "content-digest" with a body, and "prefer" and '
            '"range" with these fields'
        )
    listed = _PARAMETER.findall(inputs.group(3))
    texts = {name: text for name, text, number in listed if not number}
    seconds = {name: number for name, _, number in listed if number}
    # Of a repeated parameter two parsers could read different values.
    if len(texts) + len(seconds) != len(listed) or set(texts) != _TEXTS or set(seconds) != _NUMBERS:
        raise ProfileBroken("the parameters are created, expires, nonce, keyid, alg and tag, once each")
    if texts["alg"] != "ed25519" or texts["tag"] != TAG or not _NONCE.fullmatch(texts["nonce"]):
        raise ProfileBroken(f'alg is "ed25519", tag "{TAG}", nonce 16 to 64 characters of base64url')
    if max(len(number) for number in seconds.values()) > _MOST_DIGITS:
        raise ProfileBroken("created and expires are seconds since 1970")
    created, expires = int(seconds["created"]), int(seconds["expires"])
    if not 0 < expires - created <= LIFE_SECONDS:
        raise ProfileBroken(f"expires is at most {LIFE_SECONDS} seconds after created")
    try:
        raw = base64.b64decode(signed.group(1), validate=True)
    except binascii.Error as error:
        raise ProfileBroken("the signature is not base64") from error
    return SignedRequest(covered, inputs.group(1), created, expires, texts["nonce"], texts["keyid"], raw)


def signature_base(values: Mapping[str, str], parameters: str) -> bytes:
    """Return the signed bytes (RFC 9421, section 2.5): covered components in order, then the parameters."""
    lines = [f'"{name}": {value}' for name, value in values.items()]
    # Latin-1, since header fields are octets; other characters cannot be sent.
    return "\n".join([*lines, f'"@signature-params": {parameters}']).encode("latin-1", "replace")
