"""The errors of the service: one class per fact, with status, problem type and title."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Self

from pydantic import JsonValue


class SettingsUnusable(Exception):
    """The service cannot start; the message names the setting and the remedy."""


class ReplyEnded(Exception):
    """A response in progress must end early; the message is the slug of the problem type."""


class Refusal(Exception):
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
        return dict(self.headers)


class AuthMissing(Refusal):
    status, slug, title = 401, "auth-missing", "The request has no credential; sign it or send a bearer token"
    headers: ClassVar[dict[str, str]] = {"WWW-Authenticate": "Bearer"}


class CredentialInvalid(Refusal):
    status, slug, title = 401, "credential-invalid", "The credential is unknown, expired or revoked"
    headers: ClassVar[dict[str, str]] = {"WWW-Authenticate": 'Bearer error="invalid_token"'}


_SIGNATURE: dict[str, str] = {"WWW-Authenticate": "Signature"}


class SignatureProfileBroken(Refusal):
    status, slug, title = 401, "signature-profile", "The signature does not follow the signature profile"
    headers = _SIGNATURE


class SignatureInvalid(Refusal):
    status, slug, title = 401, "signature-invalid", "The signature is wrong, or its key is not enrolled"
    headers = _SIGNATURE


class ClockSkew(Refusal):
    status, slug, title = 401, "clock-skew", "The signature's time is off; synchronise the client's clock"
    headers = _SIGNATURE


class KeyRevoked(Refusal):
    status, slug, title = 401, "key-revoked", "This key was revoked or replaced; sign with the current key"
    headers = _SIGNATURE


class RequestReplayed(Refusal):
    status, slug, title = 401, "replayed", "This signed request was received before; sign it with a new nonce"
    headers = _SIGNATURE


class EnrolmentTokenInvalid(Refusal):
    status, slug, title = 401, "enrolment-token-invalid", "The enrolment token is not valid for this client"
    headers: ClassVar[dict[str, str]] = {"WWW-Authenticate": "Bearer"}


class EnrolmentTokenMisused(EnrolmentTokenInvalid):
    # The response is that of an unknown token; the audit log has the reason.
    def __init__(self, token_id: str, reason: str) -> None:
        super().__init__()
        self.token_id, self.reason = token_id, reason


class Forbidden(Refusal):
    status, slug, title = 403, "forbidden", "Your role or credential does not allow this request"


class NotFound(Refusal):
    status, slug, title = 404, "not-found", "Not found, or not accessible to you"


class MethodNotAllowed(Refusal):
    status, slug, title = 405, "method-not-allowed", "This path does not support this method; see Allow"


class FederationStateConflict(Refusal):
    status, slug, title = 409, "federation-state", "The federation's state does not allow this request"


class ClientNameTaken(Refusal):
    status, slug = 409, "client-name-taken"
    title = "A client or an unused token has this name; choose another, or set `replace` if it is a token"


class RoundClosed(Refusal):
    status, slug, title = 409, "round-closed", "The round is closed; continue with the next round"


class NotDrawn(Refusal):
    status, slug, title = 409, "not-drawn", "Other clients were drawn for this round; wait for the next one"


class NotJoined(Refusal):
    status, slug, title = 409, "not-joined", "The client has not joined the round; join it first"


class UploadConflict(Refusal):
    status, slug, title = 409, "upload-conflict", "Different content was accepted before and is not replaced"


class SecureSumRequired(Refusal):
    status, slug, title = 409, "secure-sum-required", "Updates are summed; send `ready`, not an update"


class NoSecureSum(Refusal):
    status, slug, title = 409, "no-secure-sum", "This federation has no secure sum; send an update"


class AnchorsMissing(Refusal):
    status, slug, title = 409, "anchors-missing", "The anchor texts of the plan are missing; store them first"


class PackMissing(Refusal):
    status, slug, title = 409, "pack-missing", "Your base model has no alignment pack yet; store it first"


class PivotPackMissing(Refusal):
    status, slug, title = (
        409,
        "pivot-pack-missing",
        "The pivot's pack is not stored yet; retry once a client of the pivot or an operator has stored it",
    )


class RequestTimeout(Refusal):
    status, slug, title = 408, "request-timeout", "The request was too slow; send it again"
    headers: ClassVar[dict[str, str]] = {"Connection": "close"}


class BaseMismatch(Refusal):
    status, slug, title = 412, "base-mismatch", "Trained from other weights than those served for this round"


class ReferenceMismatch(Refusal):
    status, slug, title = 412, "reference-mismatch", "The update is not relative to the served reference"


class BodyTooLarge(Refusal):
    status, slug, title = 413, "body-too-large", "The body is larger than this route accepts; see `limit`"


class BodyOverran(BodyTooLarge):
    # The rest of the body is not read, so the connection cannot be reused.
    headers: ClassVar[dict[str, str]] = {"Connection": "close"}


class AuthorityUnknown(Refusal):
    status, slug, title = 421, "authority-unknown", "The Host field does not name this server"


class MediaTypeRefused(Refusal):
    status, slug, title = 415, "media-type", "This route does not accept this media type; see `accepts`"


class ContentEncodingRefused(Refusal):
    status, slug, title = 415, "content-encoding", "This content encoding is not accepted; see `accepts`"


class RangeUnsatisfiable(Refusal):
    status, slug, title = 416, "range", "The range lies outside the body; see Content-Range"

    def fields(self) -> dict[str, str]:
        return {"Content-Range": f"bytes */{self.facts['size']}"}


class DigestMissing(Refusal):
    status, slug, title = 400, "digest-missing", "Content-Digest is missing; send it with sha-256"


class DigestMismatch(Refusal):
    status, slug, title = 400, "digest-mismatch", "Content-Digest does not match the body; send it again"


class BodyIncomplete(Refusal):
    status, slug, title = 400, "body-incomplete", "The body ended before its announced length; send it again"


class RequestMalformed(Refusal):
    status, slug, title = 400, "malformed-request", "This is not a valid HTTP/1.1 request"


class JsonMalformed(Refusal):
    status, slug, title = 400, "malformed-json", "The body is not strict JSON"


class Invalid(Refusal):
    status, slug, title = 422, "validation", "A field is missing or wrong; see `errors`"

    @classmethod
    def of(cls, faults: Sequence[tuple[str, str]]) -> Self:
        """Build the error of fields, each with what is wrong with it; `field` names the first one."""
        texts = [f"{field}: {text}" if field else text for field, text in faults]
        errors: list[JsonValue] = [{"field": field, "message": text} for field, text in faults]
        return cls("; ".join(texts), field=faults[0][0], errors=errors)

    @classmethod
    def joined(cls, refusals: Sequence[Self]) -> Self:
        """Return one error with the fields of several, each field once; a single error is unchanged."""
        if len(refusals) == 1:
            return refusals[0]
        faults: dict[str, str] = {}
        for refusal in refusals:
            for field, text in refusal.faults():
                faults.setdefault(field, text)
        return cls.of([*faults.items()])

    def faults(self) -> list[tuple[str, str]]:
        """Return the fields, each with what is wrong with it."""
        listed = self.facts.get("errors")
        if isinstance(listed, list):
            return [
                (str(fault["field"]), str(fault["message"])) for fault in listed if isinstance(fault, dict)
            ]
        field = str(self.facts.get("field", ""))
        return [(field, str(self).removeprefix(f"{field}: "))]


def all_of(checks: Iterable[Callable[[], object]]) -> None:
    """Run checks, and raise one error for the fields that any of them refuses.

    Raises:
        Invalid: at least one of them does.
    """
    refusals: list[Invalid] = []
    for check in checks:
        try:
            check()
        except Invalid as error:
            refusals.append(error)
    if refusals:
        raise Invalid.joined(refusals)


class LayoutMismatch(Refusal):
    status, slug, title = 422, "layout-mismatch", "This adapter cannot be summed with other members' adapters"


class TokenizerMismatch(Refusal):
    status, slug, title = (
        422,
        "tokenizer-mismatch",
        "Members with this base model have another tokenizer; see `parts`",
    )


class WeakPublicKey(Refusal):
    status, slug, title = 422, "weak-public-key", "The public key is not acceptable, or its proof is wrong"


class MetadataRefused(Refusal):
    status, slug, title = 422, "metadata", "The manifest does not fit this request"


class NormExceeded(Refusal):
    status, slug, title = 422, "norm-exceeded", "The update's norm exceeds limits.max_norm of the plan"


class SignatureRefused(Refusal):
    status, slug, title = 422, "signature-vector", "The signature is not a usable vector"


class ProtocolVersionUnsupported(Refusal):
    status, slug, title = 426, "protocol-version", "Unsupported protocol version; use one of `supported`"
    headers: ClassVar[dict[str, str]] = {"Upgrade": "tessera/1"}


class CapabilityMissing(Refusal):
    status, slug, title = 426, "capability-missing", "The agent lacks a capability; install a newer version"
    headers: ClassVar[dict[str, str]] = {"Upgrade": "tessera/1"}


class RateLimited(Refusal):
    status, slug, title = 429, "rate-limited", "Too many requests; retry after Retry-After seconds"

    def __init__(self, seconds: float, detail: str | None = None) -> None:
        super().__init__(detail)
        self.seconds = seconds

    def fields(self) -> dict[str, str]:
        """Return Retry-After with a random part, so that clients do not return at once."""
        return {"Retry-After": str(math.ceil(self.seconds) + random.randint(0, 5))}


class TooManyStreams(RateLimited):
    title = "Too many event streams of one caller; close one"


class TooManySigned(RateLimited):
    title = "Too many requests were signed with this key; retry after Retry-After seconds"


class TargetTooLong(Refusal):
    status, slug, title = 414, "target-too-long", "Path and query are too long; shorten them to `limit` bytes"


class HeadTooLarge(Refusal):
    status, slug, title = 431, "head-too-large", "Target and header fields are too large; shorten them"


class Busy(Refusal):
    status, slug, title = 503, "busy", "The server is busy; retry after Retry-After seconds"

    def fields(self) -> dict[str, str]:
        # Spread, so that refused clients do not return at once.
        return {"Retry-After": str(random.randint(1, 5))}


class Unavailable(Refusal):
    status, slug, title = 503, "unavailable", "The database does not answer; retry after Retry-After seconds"

    def fields(self) -> dict[str, str]:
        # Longer than for a busy server: a database takes seconds to start.
        return {"Retry-After": str(random.randint(3, 10))}


class StrategyUnavailable(Unavailable):
    title = "The strategy of this federation is not usable here; the operator must install its package again"


class StorageFull(Refusal):
    status, slug = 507, "storage-full"
    title = "The coordinator's disk is full; its operator must free space; retry after Retry-After seconds"

    def fields(self) -> dict[str, str]:
        """Close the connection: the rest of the body is not read."""
        return {"Retry-After": str(random.randint(45, 90)), "Connection": "close"}


class Internal(Refusal):
    status, slug, title = 500, "internal", "Internal error; the server's log contains `incident`"
