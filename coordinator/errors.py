"""Every error of the service on one screen: a class per fact, with its status and problem type."""

from __future__ import annotations

import math
import random
from typing import ClassVar

from pydantic import JsonValue


class SettingsUnusable(Exception):
    """The service cannot start with these settings; the message says which and what to do."""


class ReplyEnded(Exception):
    """An answer under way has to end before all of it is there: the message is the problem type's slug."""


class Refused(Exception):
    """A request that is answered with a problem document; `facts` become its extra members."""

    status: ClassVar[int]
    slug: ClassVar[str]
    title: ClassVar[str]
    headers: ClassVar[dict[str, str]] = {}

    def __init__(self, detail: str | None = None, **facts: JsonValue) -> None:
        super().__init__(detail or self.title)
        self.detail = detail
        self.facts = facts

    def fields(self) -> dict[str, str]:
        """Give the header fields of the answer."""
        return dict(self.headers)


class AuthMissing(Refused):
    status, slug, title = 401, "auth-missing", "This request carries no credential"
    headers: ClassVar[dict[str, str]] = {"WWW-Authenticate": "Bearer"}


class CredentialInvalid(Refused):
    status, slug, title = 401, "credential-invalid", "The credential is unknown, expired or revoked"
    headers: ClassVar[dict[str, str]] = {"WWW-Authenticate": 'Bearer error="invalid_token"'}


_SIGNATURE: dict[str, str] = {"WWW-Authenticate": "Signature"}


class SignatureProfileBroken(Refused):
    status, slug, title = 401, "signature-profile", "The signature is not of the form that is accepted here"
    headers = _SIGNATURE


class SignatureInvalid(Refused):
    status, slug, title = (
        401,
        "signature-invalid",
        "The signature is not a known key's over this request",
    )
    headers = _SIGNATURE


class ClockSkew(Refused):
    status, slug, title = 401, "clock-skew", "The signature's time is not near this server's"
    headers = _SIGNATURE


class KeyRevoked(Refused):
    status, slug, title = 401, "key-revoked", "This key is not accepted any more"
    headers = _SIGNATURE


class Replayed(Refused):
    status, slug, title = 401, "replayed", "This signed request was received before; sign it anew"
    headers = _SIGNATURE


class EnrolmentTokenInvalid(Refused):
    status, slug, title = 401, "enrolment-token-invalid", "The enrolment token is not valid for this client"
    headers: ClassVar[dict[str, str]] = {"WWW-Authenticate": "Bearer"}


class EnrolmentTokenMisused(EnrolmentTokenInvalid):
    # Answered like a token that nobody made, and written into the audit log.
    def __init__(self, token_id: str, reason: str) -> None:
        super().__init__()
        self.token_id, self.reason = token_id, reason


class Forbidden(Refused):
    status, slug, title = 403, "forbidden", "Your role does not allow this"


class NotFound(Refused):
    status, slug, title = 404, "not-found", "There is no such thing, or it is not yours"


class MethodNotAllowed(Refused):
    status, slug, title = 405, "method-not-allowed", "This path does not take that method"


class FederationStateConflict(Refused):
    status, slug, title = 409, "federation-state", "The federation is not in a state that allows this"


class ClientNameTaken(Refused):
    status, slug, title = (
        409,
        "client-name-taken",
        "The federation has a client of this name, or an unused token for one, which replace ends",
    )


class RoundClosed(Refused):
    status, slug, title = 409, "round-closed", "The round no longer takes this"


class NotJoined(Refused):
    status, slug, title = 409, "not-joined", "Join the round first"


class UploadConflict(Refused):
    status, slug, title = 409, "upload-conflict", "Other bytes were accepted under this name before"


class AnchorsMissing(Refused):
    status, slug, title = 409, "anchors-missing", "Store the anchor texts that the plan aligns on first"


class PackMissing(Refused):
    status, slug, title = 409, "pack-missing", "The alignment pack of your base model is not stored yet"


class PivotPackMissing(Refused):
    status, slug, title = (
        409,
        "pivot-pack-missing",
        "The pivot's pack comes first, from a client of that base model or an operator; try again then",
    )


class RequestTimeout(Refused):
    status, slug, title = 408, "request-timeout", "The request came too slowly"
    headers: ClassVar[dict[str, str]] = {"Connection": "close"}


class BaseMismatch(Refused):
    status, slug, title = 412, "base-mismatch", "Trained from other weights than those served for this round"


class ReferenceMismatch(Refused):
    status, slug, title = 412, "reference-mismatch", "The update is the difference to something else"


class BodyTooLarge(Refused):
    status, slug, title = 413, "body-too-large", "The body is larger than this route accepts"


class BodyOverran(BodyTooLarge):
    # The rest is never read, so the connection cannot carry another request.
    headers: ClassVar[dict[str, str]] = {"Connection": "close"}


class AuthorityUnknown(Refused):
    status, slug, title = 421, "authority-unknown", "This server does not go by the name in the Host field"


class MediaTypeRefused(Refused):
    status, slug, title = 415, "media-type", "This route does not accept that media type"


class ContentEncodingRefused(Refused):
    status, slug, title = 415, "content-encoding", "Only zstd or no content encoding is accepted"


class RangeUnsatisfiable(Refused):
    status, slug, title = 416, "range", "The range lies outside the body"

    def fields(self) -> dict[str, str]:
        """Say how long the body is."""
        return {"Content-Range": f"bytes */{self.facts['size']}"}


class DigestMissing(Refused):
    status, slug, title = 400, "digest-missing", "Content-Digest with sha-256 is required"


class DigestMismatch(Refused):
    status, slug, title = 400, "digest-mismatch", "Content-Digest does not match the received bytes"


class BodyIncomplete(Refused):
    status, slug, title = 400, "body-incomplete", "The body ended before its announced length"


class RequestMalformed(Refused):
    status, slug, title = 400, "malformed-request", "This is not an HTTP/1.1 request"


class JsonMalformed(Refused):
    status, slug, title = 400, "malformed-json", "The body is not strict JSON"


class Invalid(Refused):
    status, slug, title = 422, "validation", "A field is missing or wrong"


class WeakPublicKey(Refused):
    status, slug, title = (
        422,
        "weak-public-key",
        "The public key may not be used, or is not proved yours",
    )


class MetadataRefused(Refused):
    status, slug, title = 422, "metadata", "The manifest does not fit this request"


class NormExceeded(Refused):
    status, slug, title = 422, "norm-exceeded", "The update's norm is over the federation's limit"


class SignatureRefused(Refused):
    status, slug, title = 422, "signature-vector", "The signature is not a usable vector"


class ProtocolVersionUnsupported(Refused):
    status, slug, title = 426, "protocol-version", "This protocol version is not spoken here"
    headers: ClassVar[dict[str, str]] = {"Upgrade": "tessera/1"}


class RateLimited(Refused):
    status, slug, title = 429, "rate-limited", "Too many requests; wait as long as Retry-After says"

    def __init__(self, seconds: float, detail: str | None = None) -> None:
        super().__init__(detail)
        self.seconds = seconds

    def fields(self) -> dict[str, str]:
        """Say how long to wait, and spread those who come back."""
        return {"Retry-After": str(math.ceil(self.seconds) + random.randint(0, 5))}


class TooManyStreams(RateLimited):
    title = "You follow as many event streams as one caller may; close one"


class TooManySigned(RateLimited):
    title = "Too many requests are signed with this key; wait"


class TargetTooLong(Refused):
    status, slug, title = 414, "target-too-long", "The path and the query are too long together"


class HeadTooLarge(Refused):
    status, slug, title = 431, "head-too-large", "The target and the header fields are too large together"


class Busy(Refused):
    status, slug, title = 503, "busy", "Too much at once; try again"

    def fields(self) -> dict[str, str]:
        """Spread those who come back."""
        return {"Retry-After": str(random.randint(1, 5))}


class Unavailable(Refused):
    status, slug, title = 503, "unavailable", "The database does not answer; try again"

    def fields(self) -> dict[str, str]:
        """Spread those who come back."""
        return {"Retry-After": str(random.randint(3, 10))}


class StorageFull(Refused):
    status, slug, title = 507, "storage-full", "There is no space left here; try again later"

    def fields(self) -> dict[str, str]:
        """Spread those who come back. A body that found no space is not read to its end."""
        return {"Retry-After": str(random.randint(45, 90)), "Connection": "close"}


class Internal(Refused):
    status, slug, title = 500, "internal", "Something went wrong here; the log has this incident"
