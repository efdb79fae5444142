"""The coordinator as the agent sees it: one method per call, retried until a deadline. Knows no training.

Proxies and certificate authorities are httpx's: HTTPS_PROXY, SSL_CERT_FILE and the like.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import TypeAdapter, ValidationError

from client_agent.errors import CoordinatorRefused, DownloadDamaged
from client_agent.transport.handshake import check_hello, new_challenge
from client_agent.transport.request_signing import SignedRequests
from client_agent.transport.responses import read, retry_after, unreadable
from client_agent.transport.retry import RANGE_UNSATISFIABLE, Send, persist, unless_stopped
from client_agent.transport.timeouts import DeadlineClient, carry
from schemas.messages.alignment import Acceptance, Anchors, PackList
from schemas.messages.enrolment import Enrolment, EnrolmentRequest, KeyInUse, KeyRotation, Me, RosterPage
from schemas.messages.recipes import WeightsRecipeName
from schemas.messages.rounds import FinishedBrief, Joined, RoundBrief, RoundView, Scores, SignedDocument
from schemas.messages.tokens import Hello
from schemas.messages.updates import Receipt
from schemas.wire.compress import is_frame
from schemas.wire.digests import digest_of, from_field, to_field
from schemas.wire.envelope import MEDIA_TYPE

_TIMEOUT = httpx.Timeout(60.0, connect=15.0)

_brief: TypeAdapter[RoundBrief | FinishedBrief] = TypeAdapter(RoundBrief | FinishedBrief)
_document: TypeAdapter[SignedDocument] = TypeAdapter(SignedDocument)


@dataclass(frozen=True, slots=True)
class NothingYet:
    """There is nothing to do now; ask again after `seconds`."""

    seconds: float


@dataclass(frozen=True, slots=True)
class TensorBody:
    """A downloaded tensor body as it was sent, and its digest; `proof` comes with coded weights."""

    body: bytes
    digest: str
    proof: str = ""


class CoordinatorApi:
    """A connection to one coordinator.

    Args:
        url: where it is.
        key: what every request is signed with; None before enrolment.
        server_key: the coordinator's public key, as it proved it: who may correct our clock.
        deadline_seconds: how long one call may take, all its tries together; a body has 100 kB/s beyond that.
        sleep: waits, and may raise Stopped; a test passes its own.
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
    ) -> None:
        self._url = url.rstrip("/")  # as httpx's base_url it would be parsed once more for every request
        self._signing = SignedRequests(key, server_key) if key is not None else None
        self._client = DeadlineClient(
            headers={"Accept-Encoding": "identity"},
            auth=self._signing,
            timeout=_TIMEOUT,
            transport=transport,
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
        """Sign every request with another key of the same client's from now on."""
        if self._signing is not None:
            self._signing.sign_with(key)

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
                lambda by: unless_stopped(
                    lambda: self._client.get(self._url + path, headers=prefer, extensions=by), self._sleep
                )
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

    def weights(self, federation: str, number: int, recipe: WeightsRecipeName | None = None) -> TensorBody:
        """Download my personalised weights of a round, by a recipe if the coordinator can, else dense."""
        accept = f"{MEDIA_TYPE};recipe={recipe}, {MEDIA_TYPE}" if recipe is not None else MEDIA_TYPE
        return self._download(f"/v1/federations/{federation}/rounds/{number}/weights", accept)

    def whole_weights(self, federation: str, number: int) -> TensorBody:
        """Download my weights of a round with all that was folded so far, if the coordinator has that."""
        accept = f"{MEDIA_TYPE};fold=whole, {MEDIA_TYPE}"
        return self._download(f"/v1/federations/{federation}/rounds/{number}/weights", accept)

    def push_update(self, federation: str, number: int, body: bytes) -> Receipt:
        """Deliver my update; the same bytes may be sent any number of times."""
        path = f"/v1/federations/{federation}/rounds/{number}/update"
        headers = _upload_headers(body)
        return read(Receipt, self._call("PUT", path, content=body, headers=headers))

    def round_view(self, federation: str, number: int) -> RoundView:
        """Look how a round stands, without its other clients."""
        return read(RoundView, self._call("GET", f"/v1/federations/{federation}/rounds/{number}"))

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

    def packs(self, federation: str) -> PackList:
        """List the alignment packs that are stored, and those that ended."""
        return read(PackList, self._call("GET", f"/v1/federations/{federation}/alignments"))

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
                method, self._url + path, content=content, json=json, headers=headers, extensions=by
            ),
            size=len(content or b""),
        )

    def _persist(self, send: Send, size: int = 0) -> httpx.Response:
        return persist(
            send, url=self._url, deadline_seconds=self._deadline_seconds, sleep=self._sleep, size=size
        )

    def _download(self, path: str, accept: str = MEDIA_TYPE) -> TensorBody:
        """Fetch a body, going on where a broken connection left off, and check it against its digest."""
        received = bytearray()
        tag: str | None = None

        def fetch(by: dict[str, Any]) -> httpx.Response:
            nonlocal tag
            resume = {"Range": f"bytes={len(received)}-", "If-Range": tag} if received and tag else {}
            headers = {"Accept": accept, **resume}
            with self._client.stream("GET", self._url + path, headers=headers, extensions=by) as answer:
                if answer.status_code == httpx.codes.OK or answer.status_code == RANGE_UNSATISFIABLE:
                    received.clear()  # the whole body comes, or must be asked for
                    tag = answer.headers.get("ETag")
                carry(answer)
                if not answer.is_success:
                    answer.read()
                for piece in answer.iter_raw() if answer.is_success else ():
                    received.extend(piece)
                return answer

        answer = self._persist(fetch)
        body = bytes(received)
        received.clear()
        digest = digest_of(body)
        if from_field(answer.headers.get("Repr-Digest", "")) != digest:
            raise DownloadDamaged(path)
        return TensorBody(body, digest, answer.headers.get("Tessera-Weights", ""))


def _upload_headers(body: bytes) -> dict[str, str]:
    headers = {"Content-Type": MEDIA_TYPE, "Content-Digest": to_field(digest_of(body))}
    if is_frame(body):
        headers["Content-Encoding"] = "zstd"
    return headers
