"""The coordinator as the agent sees it: one method per call, retried until a deadline.

Decides what is worth trying again, and when. Knows no training. Proxies and authorities are httpx's.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import TypeAdapter, ValidationError

from client_agent.answers import accepted, read, retry_after, unreadable
from client_agent.deadlines import hooks, until
from client_agent.errors import CoordinatorRefused, CoordinatorUnreachable, DownloadDamaged
from client_agent.signed_requests import SignedRequests
from client_agent.trust import check_hello, new_challenge
from schemas.messages.alignment import Acceptance, Anchors
from schemas.messages.enrolment import Enrolment, EnrolmentRequest, KeyInUse, KeyRotation, Me, RosterPage
from schemas.messages.people import Hello
from schemas.messages.rounds import FinishedBrief, Joined, RoundBrief, Scores, SignedDocument
from schemas.messages.updates import Receipt
from schemas.wire.compress import is_frame
from schemas.wire.digests import digest_of, from_field, to_field
from schemas.wire.envelope import MEDIA_TYPE

_RANGE_UNSATISFIABLE = 416  # the connection broke behind the last byte
_TRY_AGAIN = frozenset({408, _RANGE_UNSATISFIABLE, 425, 429, 500, 502, 503, 504, 507})
_SHORTEST_CEILING, _LONGEST_CEILING = 1.0, 60.0
_TIMEOUT = httpx.Timeout(60.0, connect=15.0)
_STOP_LOOK_SECONDS = 0.25
_ONE_TRY_SECONDS = 5.0  # what a call may take however short its deadline is

_brief: TypeAdapter[RoundBrief | FinishedBrief] = TypeAdapter(RoundBrief | FinishedBrief)
_document: TypeAdapter[SignedDocument] = TypeAdapter(SignedDocument)


@dataclass(frozen=True, slots=True)
class NothingYet:
    """There is nothing to do now; ask again after `seconds`."""

    seconds: float


@dataclass(frozen=True, slots=True)
class TensorBody:
    """A downloaded tensor body as it was sent, and its digest."""

    body: bytes
    digest: str


class CoordinatorApi:
    """A connection to one coordinator.

    Args:
        url: where it is.
        key: what every request is signed with; None before enrolment.
        deadline_seconds: how long one call may take, all its tries together.
        sleep: waits, and may raise Stopped; a test passes its own.
    """

    def __init__(
        self,
        url: str,
        *,
        key: Ed25519PrivateKey | None,
        deadline_seconds: float,
        sleep: Callable[[float], None] = time.sleep,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._signing = SignedRequests(key) if key is not None else None
        self._client = httpx.Client(
            base_url=url,
            headers={"Accept-Encoding": "identity"},
            auth=self._signing,
            timeout=_TIMEOUT,
            transport=transport,
            event_hooks=hooks(),
        )
        self._deadline_seconds = deadline_seconds
        self._sleep = sleep

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def hello(self) -> Hello:
        """Ask who answers; the answer proves nothing."""
        return read(Hello, self._call("GET", "/v1/hello"))

    def proved_hello(self, pin: str) -> Hello:
        """Ask who answers, and believe only the coordinator whose signing key has the thumbprint `pin`.

        Raises:
            CoordinatorNotTrusted: another answered, or an old answer was repeated.
        """
        challenge = new_challenge()
        answer = self._call("GET", f"/v1/hello?challenge={challenge}")
        hello = read(Hello, answer)
        check_hello(answer.content, hello, challenge=challenge, pin=pin)
        return hello

    def enrol(self, request: EnrolmentRequest) -> Enrolment:
        """Become a member; safe to repeat with the same key."""
        return read(Enrolment, self._call("POST", "/v1/enrolments", json=request.model_dump(mode="json")))

    def replace_key(self, request: KeyRotation) -> KeyInUse:
        """Replace the key that signs this very call."""
        return read(KeyInUse, self._call("PUT", "/v1/me/key", json=request.model_dump(mode="json")))

    def me(self) -> Me:
        """Ask who I am to the coordinator."""
        return read(Me, self._call("GET", "/v1/me"))

    def current_round(
        self, federation: str, *, wait_seconds: int = 0
    ) -> RoundBrief | FinishedBrief | NothingYet:
        """Ask what to do now, or as soon as there is something within the time that the coordinator waits."""
        path = f"/v1/federations/{federation}/rounds/current"
        prefer = {"Prefer": f"wait={wait_seconds}"}
        if wait_seconds:
            answer = self._persist(
                lambda by: self._unless_stopped(lambda: self._client.get(path, headers=prefer, extensions=by))
            )
        else:
            answer = self._call("GET", path)
        if answer.status_code == httpx.codes.NO_CONTENT:
            advised = retry_after(answer)
            return NothingYet(5.0 if advised is None else advised)
        try:
            return _brief.validate_json(answer.content, extra="ignore")
        except ValidationError as error:
            raise unreadable(answer, error) from None

    def now(self) -> float:
        """Tell the time as the coordinator does, seconds since 1970."""
        return self._signing.now() if self._signing is not None else time.time()

    def plan(self, federation: str) -> bytes:
        """Download the federation's plan, in the bytes that manifests name by their digest."""
        return self._call("GET", f"/v1/federations/{federation}/plan").content

    def roster(self, federation: str, *, after: int) -> list[SignedDocument]:
        """Download the links of the roster after a version, some at a time."""
        path = f"/v1/federations/{federation}/roster?after={after}"
        return read(RosterPage, self._call("GET", path)).items

    def manifest(self, federation: str, number: int) -> SignedDocument:
        """Download the manifest that I was given for a round."""
        answer = self._call("GET", f"/v1/federations/{federation}/rounds/{number}/manifest")
        try:
            return _document.validate_json(answer.content)
        except ValidationError as error:
            raise unreadable(answer, error) from None

    def join(self, federation: str, number: int, signature: bytes | None) -> Joined:
        """Take part in a round; `signature` lets a newcomer be weighed before its first update."""
        path = f"/v1/federations/{federation}/rounds/{number}/join"
        headers = _upload_headers(signature) if signature is not None else None
        return read(Joined, self._call("POST", path, content=signature, headers=headers))

    def weights(self, federation: str, number: int) -> TensorBody:
        """Download my personalised weights of a round."""
        return self._download(f"/v1/federations/{federation}/rounds/{number}/weights")

    def push_update(self, federation: str, number: int, body: bytes) -> Receipt:
        """Deliver my update; the same bytes may be sent any number of times."""
        path = f"/v1/federations/{federation}/rounds/{number}/update"
        headers = _upload_headers(body)
        return read(Receipt, self._call("PUT", path, content=body, headers=headers))

    def send_scores(self, federation: str, number: int, scores: Scores) -> None:
        """Say how good the model was before and after the local steps."""
        self._call("PUT", f"/v1/federations/{federation}/rounds/{number}/scores", json=scores.model_dump())

    def anchors(self, federation: str) -> Anchors:
        """Download the federation's public anchor texts."""
        return read(Anchors, self._call("GET", f"/v1/federations/{federation}/anchors"))

    def pack(self, federation: str, base_model: str) -> TensorBody | None:
        """Download a base model's alignment pack; None while nobody has made it."""
        try:
            return self._download(f"/v1/federations/{federation}/alignments/{base_model}")
        except CoordinatorRefused as refusal:
            if refusal.status == httpx.codes.NOT_FOUND:
                return None
            raise

    def put_pack(self, federation: str, base_model: str, body: bytes) -> None:
        """Deliver a base model's alignment pack."""
        path = f"/v1/federations/{federation}/alignments/{base_model}"
        self._call("PUT", path, content=body, headers=_upload_headers(body))

    def put_acceptance(self, federation: str, base_model: str, tested: Acceptance) -> None:
        """Say how a base model's alignment pack did in its acceptance test."""
        path = f"/v1/federations/{federation}/alignments/{base_model}/acceptance"
        self._call("PUT", path, json=tested.model_dump(mode="json"))

    def _call(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None = None,
        json: object = None,
        headers: dict[str, str] | None = None,
    ) -> httpx.Response:
        """Send until it is answered for good, or the deadline passes."""
        return self._persist(
            lambda by: self._client.request(
                method, path, content=content, json=json, headers=headers, extensions=by
            )
        )

    def _unless_stopped(self, send: Callable[[], httpx.Response]) -> httpx.Response:
        """Send what may take long to be answered in a thread of its own, so that a stop need not wait for it.

        The thread that is left behind ends with its connection, at the latest with the process.
        """
        sent: Future[httpx.Response] = Future()

        def run() -> None:
            try:
                sent.set_result(send())
            except BaseException as error:
                sent.set_exception(error)

        threading.Thread(target=run, name="waits-for-a-round", daemon=True).start()
        while not wait([sent], _STOP_LOOK_SECONDS).done:
            self._sleep(0.0)
        return sent.result()

    def _persist(self, send: Callable[[dict[str, Any]], httpx.Response]) -> httpx.Response:
        began, ceiling = time.monotonic(), _SHORTEST_CEILING
        by = until(began + max(self._deadline_seconds, _ONE_TRY_SECONDS))
        while True:
            advised: float | None = None
            try:
                answer = send(by)
            except httpx.TransportError as error:
                trouble = f"{type(error).__name__}: {error}"
            else:
                if answer.status_code not in _TRY_AGAIN:
                    return accepted(answer)
                trouble, advised = f"status {answer.status_code}", retry_after(answer)
            # Full jitter: agents that lost the same coordinator must not come back all at once.
            wait = max(advised or 0.0, random.uniform(0.0, ceiling))
            elapsed = time.monotonic() - began
            if elapsed + wait > self._deadline_seconds:
                raise CoordinatorUnreachable(str(self._client.base_url), trouble, elapsed)
            self._sleep(wait)
            ceiling = min(2 * ceiling, _LONGEST_CEILING)

    def _download(self, path: str) -> TensorBody:
        """Fetch a body, going on where a broken connection left off, and check it against its digest."""
        received = bytearray()
        tag: str | None = None

        def fetch(by: dict[str, Any]) -> httpx.Response:
            nonlocal tag
            resume = {"Range": f"bytes={len(received)}-", "If-Range": tag} if received and tag else {}
            headers = {"Accept": MEDIA_TYPE, **resume}
            with self._client.stream("GET", path, headers=headers, extensions=by) as answer:
                if answer.status_code == httpx.codes.OK or answer.status_code == _RANGE_UNSATISFIABLE:
                    received.clear()  # the whole body comes, or must be asked for
                    tag = answer.headers.get("ETag")
                if not answer.is_success:
                    answer.read()
                for piece in answer.iter_raw() if answer.is_success else ():
                    received.extend(piece)
                return answer

        answer = self._persist(fetch)
        digest = digest_of(bytes(received))
        if from_field(answer.headers.get("Repr-Digest", "")) != digest:
            raise DownloadDamaged(path)
        return TensorBody(bytes(received), digest)


def _upload_headers(body: bytes) -> dict[str, str]:
    headers = {"Content-Type": MEDIA_TYPE, "Content-Digest": to_field(digest_of(body))}
    if is_frame(body):
        headers["Content-Encoding"] = "zstd"
    return headers
