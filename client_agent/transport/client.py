"""Client of the coordinator's HTTP API: one method per call, retried until a deadline.

Proxies and certificate authorities are those of HTTPS_PROXY, SSL_CERT_FILE and similar variables.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import TypeAdapter, ValidationError

from client_agent.errors import CoordinatorRefused, CoordinatorUnreachable, DownloadDamaged, SettingsUnusable
from client_agent.transport.handshake import explain_refusal, fetch_hello
from client_agent.transport.request_signing import SignedRequests
from client_agent.transport.responses import (
    NoOpenRound,
    is_refusal,
    nothing_yet,
    read,
    require_success,
    retry_after,
    unreadable_answer,
    unreadable_brief,
)
from client_agent.transport.sent_log import SentLog
from client_agent.transport.timeouts import Deadline, DeadlineClient, extend_deadline
from schemas.http_environment import EnvironmentUnusable, Route, route_to
from schemas.identity.addresses import root_path_of
from schemas.identity.plain_http import connection_failure
from schemas.messages.alignment import Acceptance, Anchors, PackList
from schemas.messages.enrolment import Enrolment, EnrolmentRequest, KeyInUse, KeyRotation, Me, RosterPage
from schemas.messages.recipes import OwnLastName
from schemas.messages.rounds import (
    FinishedBrief,
    Joined,
    RoundBrief,
    RoundPage,
    RoundSummary,
    RoundView,
    SignedDocument,
)
from schemas.messages.scores import Scores
from schemas.messages.tokens import Hello
from schemas.messages.updates import Receipt
from schemas.wire.compress import is_frame
from schemas.wire.digests import digest_of, from_field, to_field
from schemas.wire.envelope import MEDIA_TYPE

_TIMEOUT = httpx.Timeout(60.0, connect=15.0)

_brief: TypeAdapter[RoundBrief | FinishedBrief] = TypeAdapter(RoundBrief | FinishedBrief)
_document: TypeAdapter[SignedDocument] = TypeAdapter(SignedDocument)
RANGE_UNSATISFIABLE = 416  # the connection broke after the last byte
_RETRYABLE = frozenset({408, RANGE_UNSATISFIABLE, 425, 429, 500, 502, 503, 504, 507})
_SHORTEST_CEILING, _LONGEST_CEILING = 1.0, 60.0
_ONE_TRY_SECONDS = 5.0  # the minimum time of one call, whatever its deadline
_STOP_POLL_SECONDS = 0.25
_QUIET_SECONDS, _LOG_SECONDS = 3.0, 60.0  # short outages are not logged; longer ones once a minute
log = logging.getLogger("tessera.agent")
Sleep = Callable[[float], None]
Send = Callable[[dict[str, Any]], httpx.Response]
"""Sends a request with these extensions of httpx, and returns the answer."""


@dataclass(frozen=True, slots=True)
class TensorBody:
    """A downloaded tensor body and its digest; `proof` is the Tessera-Weights header of coded weights."""

    body: bytes
    digest: str
    proof: str = ""


class CoordinatorApi:
    """A connection to one coordinator.

    Args:
        key: signs every request; None before enrolment.
        server_key: the coordinator's public key, which signs clock corrections.
        deadline_seconds: limit of one call with all its tries; a body extends it, at 100 kB/s.
        sleep: waits between tries, and may raise Stopped.
        transport: replaces the network; the environment is then not read.
        sent: the log of what is sent; None = there is none.

    Raises:
        SettingsUnusable: a variable of the environment names an unusable proxy or certificate.
    """

    def __init__(
        self,
        url: str,
        *,
        key: Ed25519PrivateKey | None,
        deadline_seconds: float,
        server_key: str | None = None,
        sleep: Callable[[float], None] = time.sleep,
        transport: httpx.BaseTransport | None = None,
        sent: SentLog | None = None,
    ) -> None:
        self._url = url.rstrip("/")  # a base_url of httpx would be parsed again for every request
        path = root_path_of(self._url)
        self._signing = SignedRequests(key, server_key, root_path=path) if key is not None else None
        route = route_of(self._url) if transport is None else None
        # For messages: a failure may be the proxy's, which the URL alone does not show.
        self._address = route.through(self._url) if route is not None else self._url
        self._client = DeadlineClient(
            on_request=[sent.record] if sent is not None else [],
            # A transfer that a proxy compresses could not be resumed at a byte, and has no length to extend
            # the deadline.
            headers={"Accept-Encoding": "identity"},
            auth=self._signing,
            timeout=_TIMEOUT,
            **(route.options if route is not None else {"transport": transport}),
        )
        self._deadline_seconds = deadline_seconds
        self._sleep = sleep

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def sign_with(self, key: Ed25519PrivateKey) -> None:
        if self._signing is not None:
            self._signing.sign_with(key)

    @property
    def url(self) -> str:
        return self._url

    def hello(self) -> Hello:
        """Fetch the greeting, without proof of the coordinator's key. Raises as `fetch_hello`."""
        return fetch_hello(self.call, self._url)

    def proved_hello(self, pin: str) -> Hello:
        """Fetch the greeting, signed by the key with the thumbprint `pin`. Raises as `fetch_hello`."""
        return fetch_hello(self.call, self._url, pin=pin)

    def enrol(self, request: EnrolmentRequest) -> Enrolment:
        """Enrol this client. Idempotent for the same key."""
        return read(Enrolment, self.call("POST", "/v1/enrolments", json=request.model_dump(mode="json")))

    def replace_key(self, request: KeyRotation) -> KeyInUse:
        """Replace the client's key; the old key signs this call."""
        return read(KeyInUse, self.call("PUT", "/v1/me/key", json=request.model_dump(mode="json")))

    def me(self) -> Me:
        return read(Me, self.call("GET", "/v1/me"))

    def current_round(
        self, federation_id: str, *, wait_seconds: int = 0
    ) -> RoundBrief | FinishedBrief | NoOpenRound:
        """Return the brief of the open round, after a long poll of at most `wait_seconds`.

        Raises:
            VersionMismatch: the answer is a brief of another version.
        """
        answer = self.poll(f"/v1/federations/{federation_id}/rounds/current", wait_seconds)
        if isinstance(answer, NoOpenRound):
            return answer
        try:
            return _brief.validate_json(answer.content, extra="ignore")
        except ValidationError as error:
            raise unreadable_brief(answer, error) from None

    def now(self) -> float:
        """Return the coordinator's time, seconds since 1970."""
        return self._signing.now() if self._signing is not None else time.time()

    def plan(self, federation_id: str) -> bytes:
        """Download the federation's plan as bytes; round manifests name their digest."""
        return self.call("GET", f"/v1/federations/{federation_id}/plan").content

    def roster(self, federation_id: str, *, after: int) -> list[SignedDocument]:
        """Download one page of roster links after a version."""
        path = f"/v1/federations/{federation_id}/roster?after={after}"
        return read(RosterPage, self.call("GET", path)).items

    def manifest(self, federation_id: str, round_number: int) -> SignedDocument:
        """Download this client's signed manifest of a round."""
        answer = self.call("GET", f"/v1/federations/{federation_id}/rounds/{round_number}/manifest")
        try:
            return _document.validate_json(answer.content)
        except ValidationError as error:
            raise unreadable_answer(answer, error) from None

    def join(self, federation_id: str, round_number: int, signature: bytes | None) -> Joined:
        """Join a round; a new client sends its sketch as `signature`, for its first relevance."""
        path = f"/v1/federations/{federation_id}/rounds/{round_number}/join"
        headers = upload_headers(signature) if signature is not None else None
        return read(Joined, self.call("POST", path, content=signature, headers=headers))

    def weights(
        self, federation_id: str, round_number: int, recipe: OwnLastName | None = None, form: str = ""
    ) -> TensorBody:
        """Download this client's weights of a round by a recipe, in another form, or dense.

        With `outputs=peers` it is the mixture of peers' outputs beside them, and never the weights."""
        form = f"recipe={recipe}" if recipe is not None else form
        accept = f"{MEDIA_TYPE};{form}, {MEDIA_TYPE}" if form else MEDIA_TYPE
        return self._download(f"/v1/federations/{federation_id}/rounds/{round_number}/weights", accept)

    def whole_weights(self, federation_id: str, round_number: int) -> TensorBody:
        """Download this client's weights of a round with the whole base delta, where stored."""
        accept = f"{MEDIA_TYPE};fold=whole, {MEDIA_TYPE}"
        return self._download(f"/v1/federations/{federation_id}/rounds/{round_number}/weights", accept)

    def expert(self, federation_id: str, expert: int, revision: int) -> TensorBody:
        """Download a revision of an expert of the federation's bank."""
        return self._download(f"/v1/federations/{federation_id}/experts/{expert}/{revision}")

    def push_update(self, federation_id: str, round_number: int, body: bytes) -> Receipt:
        """Upload this client's update. Idempotent for the same bytes."""
        path = f"/v1/federations/{federation_id}/rounds/{round_number}/update"
        headers = upload_headers(body)
        return read(Receipt, self.call("PUT", path, content=body, headers=headers))

    def newest_round(self, federation_id: str) -> RoundSummary | None:
        """Return the newest round as members see it; None before the first."""
        page = read(RoundPage, self.call("GET", f"/v1/federations/{federation_id}/rounds?limit=1"))
        return page.items[0] if page.items else None

    def round_view(self, federation_id: str, round_number: int) -> RoundView:
        """Return the state of a round, without other clients."""
        return read(RoundView, self.call("GET", f"/v1/federations/{federation_id}/rounds/{round_number}"))

    def send_scores(self, federation_id: str, round_number: int, scores: Scores) -> None:
        self.call(
            "PUT", f"/v1/federations/{federation_id}/rounds/{round_number}/scores", json=scores.model_dump()
        )

    def put_once(self, path: str, json: object) -> None:
        """Send a PUT once.

        Raises:
            CoordinatorRefused: the answer is an error.
            httpx.HTTPError: there is no answer.
        """
        require_success(self._client.put(self._url + path, json=json, timeout=5.0))

    def anchors(self, federation_id: str) -> Anchors:
        return read(Anchors, self.call("GET", f"/v1/federations/{federation_id}/anchors"))

    def pack(self, federation_id: str, base_model: str) -> TensorBody | None:
        """Download a base model's alignment pack; None if none is stored."""
        try:
            return self._download(f"/v1/federations/{federation_id}/alignments/{base_model}")
        except CoordinatorRefused as refusal:
            if refusal.status == httpx.codes.NOT_FOUND:
                return None
            raise

    def packs(self, federation_id: str) -> PackList:
        return read(PackList, self.call("GET", f"/v1/federations/{federation_id}/alignments"))

    def put_pack(self, federation_id: str, base_model: str, body: bytes) -> None:
        path = f"/v1/federations/{federation_id}/alignments/{base_model}"
        self.call("PUT", path, content=body, headers=upload_headers(body))

    def put_acceptance(self, federation_id: str, base_model: str, tested: Acceptance) -> None:
        path = f"/v1/federations/{federation_id}/alignments/{base_model}/acceptance"
        self.call("PUT", path, json=tested.model_dump(mode="json"))

    def call(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None = None,
        json: object = None,
        headers: dict[str, str] | None = None,
    ) -> httpx.Response:
        """Send a signed request until success, a permanent error or the deadline."""
        return self._send_with_retries(
            lambda extensions: self._client.request(
                method, self._url + path, content=content, json=json, headers=headers, extensions=extensions
            ),
            size=len(content or b""),
        )

    def poll(self, path: str, wait_seconds: int) -> httpx.Response | NoOpenRound:
        """Return an answer with content, after a long poll of at most `wait_seconds`."""
        get = partial(self._client.get, self._url + path, headers={"Prefer": f"wait={wait_seconds}"})

        def wait(extensions: dict[str, Any]) -> httpx.Response:
            return interruptible(partial(get, extensions=extensions), self._sleep)

        # Only a long poll needs a thread: an ordinary call ends soon after a stop.
        answer = self._send_with_retries(wait) if wait_seconds else self.call("GET", path)
        if answer.status_code == httpx.codes.NO_CONTENT:
            return nothing_yet(answer)
        return answer

    def _send_with_retries(self, send: Send, size: int = 0) -> httpx.Response:
        try:
            return send_with_retries(
                send, url=self._address, deadline_seconds=self._deadline_seconds, sleep=self._sleep, size=size
            )
        except CoordinatorRefused as refusal:
            if refusal.slug == "signature-invalid":
                explain_refusal(self._client.get, self._url)
            raise

    def _download(self, path: str, accept: str = MEDIA_TYPE) -> TensorBody:
        """Download a body, resume after a broken connection, and verify its digest.

        Raises:
            DownloadDamaged: the body does not match its digest.
        """
        received = bytearray()
        tag: str | None = None

        def fetch(extensions: dict[str, Any]) -> httpx.Response:
            nonlocal tag
            # If-Range: the whole body comes if it has changed since the first part.
            resume = {"Range": f"bytes={len(received)}-", "If-Range": tag} if received and tag else {}
            headers = {"Accept": accept, **resume}
            with self._client.stream(
                "GET", self._url + path, headers=headers, extensions=extensions
            ) as answer:
                if answer.status_code == httpx.codes.OK or answer.status_code == RANGE_UNSATISFIABLE:
                    received.clear()  # the whole body follows, or must be requested again
                    tag = answer.headers.get("ETag")
                # The length is known only now: a large body gets the time that it needs at the minimum rate.
                extend_deadline(answer)
                if not answer.is_success:
                    answer.read()
                # Raw, because decoded parts could not be continued at an offset of the coded body.
                for piece in answer.iter_raw() if answer.is_success else ():
                    received.extend(piece)
                return answer

        answer = self._send_with_retries(fetch)
        body = bytes(received)
        # Frees the first copy of the body before the digest is computed and the tensors are read.
        received.clear()
        digest = digest_of(body)
        if from_field(answer.headers.get("Repr-Digest", "")) != digest:
            raise DownloadDamaged(path)
        return TensorBody(body, digest, answer.headers.get("Tessera-Weights", ""))


def route_of(url: str) -> Route:
    """Return the route to a URL by the environment's proxies and certificates.

    Raises:
        SettingsUnusable: a variable has a value that cannot be used.
    """
    try:
        return route_to(url)
    except EnvironmentUnusable as error:
        raise SettingsUnusable(str(error)) from error


def upload_headers(body: bytes) -> dict[str, str]:
    """Return media type, digest and encoding of a body."""
    headers = {"Content-Type": MEDIA_TYPE, "Content-Digest": to_field(digest_of(body))}
    if is_frame(body):
        headers["Content-Encoding"] = "zstd"
    return headers


def send_with_retries(
    send: Send, *, url: str, deadline_seconds: float, sleep: Sleep, size: int = 0
) -> httpx.Response:
    """Return the successful answer to a request to `url` with a body of `size` bytes.

    Raises:
        CoordinatorUnreachable: no answer arrived within the deadline.
        CoordinatorRefused: a permanent error, or a rate limit beyond the deadline.
    """
    started, ceiling = time.monotonic(), _SHORTEST_CEILING
    last_logged = started + _QUIET_SECONDS - _LOG_SECONDS
    # A deadline of 0 means a single try, which still needs a few seconds.
    grace = max(0.0, _ONE_TRY_SECONDS - deadline_seconds)
    deadline = Deadline(deadline_seconds + grace, size=size)
    while True:
        server_pause: float | None = None
        answer: httpx.Response | None = None
        try:
            answer = send(deadline.extensions)
        except httpx.TransportError as error:
            failure = connection_failure(error)
        else:
            # A network may duplicate a request: the second copy is refused as replayed. Sign it again.
            if answer.status_code not in _RETRYABLE and not is_refusal(answer, "replayed"):
                return require_success(answer)
            failure, server_pause = f"status {answer.status_code}", retry_after(answer)
        # Full jitter: agents of a restarted coordinator must not return all at once.
        pause = max(server_pause or 0.0, random.uniform(0.0, ceiling))
        if pause > deadline.remaining - grace:
            # The coordinator is there: report its refusal, and not a lost connection.
            if answer is not None and answer.status_code == httpx.codes.TOO_MANY_REQUESTS:
                require_success(answer)
            raise CoordinatorUnreachable(url, failure, time.monotonic() - started)
        if time.monotonic() - last_logged > _LOG_SECONDS:
            last_logged = time.monotonic()
            log.warning(
                "%s: request failed (%s); retrying for up to %d s", url, failure, deadline.remaining - grace
            )
        sleep(pause)
        ceiling = min(2 * ceiling, _LONGEST_CEILING)


def interruptible(send: Callable[[], httpx.Response], sleep: Sleep) -> httpx.Response:
    """Send a long poll in a thread, and raise from `sleep` on a stop without waiting for the answer.

    An abandoned thread ends with its connection, at the latest with the process.
    """
    response: Future[httpx.Response] = Future()

    def run() -> None:
        try:
            response.set_result(send())
        # Also an exit: otherwise the caller would wait for a result forever.
        except BaseException as error:
            response.set_exception(error)

    # A daemon, so that a poll that nobody waits for does not delay the end of the process.
    threading.Thread(target=run, name="long-poll", daemon=True).start()
    while not wait([response], _STOP_POLL_SECONDS).done:
        sleep(0.0)
    return response.result()
