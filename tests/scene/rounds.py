"""The actions of a client in a round, over HTTP, for tests of the coordinator's answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

from schemas.maths.adapter import Layout, in_order
from schemas.messages.recipes import Recipe, SentRecipe
from schemas.messages.updates import SignatureManifest, UpdateManifest
from schemas.wire.digests import digest_of, to_field
from schemas.wire.envelope import MEDIA_TYPE, Array, pack, slots, unpack
from schemas.wire.streams import decode, encode
from tests.scene.coordinator import Served, Silo, slug
from tests.scene.waiting import wait_until

Tensors = Mapping[str, NDArray[np.float32]]

PLAN: dict[str, Any] = {
    "strategy": {"name": "fedavg"},
    "adapter": {"rank": 2, "blocks": 1, "roles": ["q"]},
    "rounds": {"total": 3, "min_clients": 2, "collect_seconds": 600},
    "signature": {"dim": 4},
}
"""Two clients, three rounds, six values."""

LAYOUT: Layout = {"b0.q.P": (2, 2), "b0.q.Q": (2,)}

SIGNATURE = np.array([1.0, 0.0, 0.0, 0.0], np.float32)


def plan(**changes: Mapping[str, Any]) -> dict[str, Any]:
    """Change members of PLAN's parts: `plan(rounds={"total": 1})`."""
    return PLAN | {part: PLAN.get(part, {}) | dict(members) for part, members in changes.items()}


def fedmosaic_plan(options: dict[str, Any] | None = None, **rounds: Any) -> dict[str, Any]:
    """Return PLAN under FedMosaic with options, and with other rounds."""
    return plan(strategy={"name": "fedmosaic", "options": options or {}}, rounds=rounds)


def values(fill: float, rank: int = 2) -> dict[str, NDArray[np.float32]]:
    """Return an adapter of one block and role q with equal values."""
    return {"b0.q.P": np.full((rank, rank), fill, np.float32), "b0.q.Q": np.full(rank, fill, np.float32)}


def scored(trained: Mapping[str, float], count: int = 96, **others: Any) -> dict[str, Any]:
    """Make the body of scores: a served model of loss 9, and a trained one that is kept."""
    served = {"loss": {"value": 9.0, "count": count}}
    named = {name: {"value": value, "count": count} for name, value in trained.items()}
    return {"served": served, "trained": named, "kept": "trained", "final": None} | others


def running(served: Served, clients: int = 2, **plan_changes: Any) -> tuple[str, list[Silo]]:
    """Create a federation, enrol clients and start it; return its id and the silos in order of their ids."""
    federation_id = served.federation(**(plan_changes or PLAN))
    silos = [served.enrol(federation_id, f"silo-{i}") for i in range(clients)]
    served.start_federation(federation_id)
    return federation_id, sorted(silos, key=lambda silo: silo.client_id)


def url(silo: Silo, number: int, suffix: str = "") -> str:
    """Return the path of a round: `url(silo, 1, "/join")`."""
    return f"/v1/federations/{silo.federation_id}/rounds/{number}{suffix}"


def current(silo: Silo) -> httpx.Response:
    """Return the brief of the current round."""
    return silo.http.get(f"/v1/federations/{silo.federation_id}/rounds/current")


def upload_headers(body: bytes, encoding: str | None = None) -> dict[str, str]:
    """Return the headers of an upload."""
    headers = {"Content-Type": MEDIA_TYPE, "Content-Digest": to_field(digest_of(body))}
    return headers | ({"Content-Encoding": encoding} if encoding else {})


def signature_body(silo: Silo, number: int, signature: NDArray[np.float32]) -> bytes:
    """Make the body of a newcomer's join."""
    manifest = SignatureManifest(
        federation=silo.federation_id, recipe={}, round=number, client=silo.client_id
    )
    return pack({"signature": signature}, manifest)


def try_join(silo: Silo, number: int, signature: NDArray[np.float32] | None = None) -> httpx.Response:
    """Send a join, which may be refused."""
    if signature is None:
        return silo.http.post(url(silo, number, "/join"))
    body = signature_body(silo, number, signature)
    return silo.http.post(url(silo, number, "/join"), content=body, headers=upload_headers(body))


def join(silo: Silo, number: int, signature: NDArray[np.float32] | None = None) -> str:
    """Join a round; return the digest of the weights to start from."""
    answer = try_join(silo, number, signature)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["weights"]["digest"])


def update_body(
    silo: Silo,
    number: int,
    base: str,
    tensors: Mapping[str, Array],
    *,
    signature: NDArray[np.float32] | None = SIGNATURE,
    compress: bool = False,
    **manifest: Any,
) -> bytes:
    """Make an update."""
    fields = {
        "federation": silo.federation_id,
        "recipe": {},
        "round": number,
        "client": silo.client_id,
        "base": base,
        "pack": None,
        "examples": 10,
    }
    sent = {**tensors, "signature": signature} if signature is not None else dict(tensors)
    return pack(sent, UpdateManifest(**(fields | manifest)), compress=compress)


def coded_body(
    silo: Silo,
    number: int,
    base: str,
    target: Tensors,
    by: Recipe,
    *,
    against: str | None,
    held: Tensors | None = None,
    change: Callable[[dict[str, Array]], object] = lambda streams: None,
    **members: Any,
) -> tuple[bytes, Tensors]:
    """Encode an update as the difference to `held`; return the body and the state after it.

    `change` may change the streams.
    """
    zeros = {name: np.zeros_like(tensor) for name, tensor in target.items()}
    before = zeros if held is None else held
    difference = {name: tensor - before[name] for name, tensor in target.items()}
    coded = encode(difference, by, "test", silo.client_id, number)
    layout = in_order({name: tensor.shape for name, tensor in target.items()})
    state = {name: before[name] + delta for name, delta in decode(coded, layout, by)}
    streams: dict[str, Array] = dict(coded.tensors)
    change(streams)
    spelt = SentRecipe(**by.model_dump(), against=against).model_dump(mode="json")
    return update_body(silo, number, base, streams, **({"recipe": spelt} | members)), state


def put(silo: Silo, number: int, body: bytes, encoding: str | None = None) -> httpx.Response:
    """Deliver a body."""
    return silo.http.put(url(silo, number, "/update"), content=body, headers=upload_headers(body, encoding))


def deliver(silo: Silo, number: int, tensors: Tensors, **members: Any) -> httpx.Response:
    """Join and deliver an update that must be accepted."""
    base = join(silo, number)
    answer = put(silo, number, update_body(silo, number, base, tensors, **members))
    assert answer.status_code == 201, answer.text
    return answer


def send_scores(silo: Silo, number: int, scores: dict[str, Any]) -> tuple[int, str]:
    """Send scores; return the status and the problem type of a refusal."""
    answer = silo.http.put(url(silo, number, "/scores"), json=scores)
    return answer.status_code, slug(answer) if answer.is_error else ""


def layout_for(silo: Silo) -> Layout:
    """Read the layout that a client sends and is served."""
    shown = silo.http.get("/v1/me").json()["layout"]
    return in_order({name: tuple(shape) for name, shape in shown.items()})


def tensors_of(answer: httpx.Response, layout: Layout = LAYOUT) -> dict[str, NDArray[np.float32]]:
    """Read the tensors of a downloaded body."""
    assert answer.status_code == 200, answer.text
    with unpack(answer.content, encoding=None, expected=slots(layout), max_bytes=2**24) as envelope:
        return {name: envelope.read_float32(name) for name in envelope.names}


def weights(silo: Silo, number: int, layout: Layout = LAYOUT) -> dict[str, NDArray[np.float32]]:
    """Download weights."""
    answer = silo.http.get(url(silo, number, "/weights"))
    read = tensors_of(answer, layout)
    assert digest_of(answer.content) == answer.headers["etag"].strip('"')
    return read


def last_update(silo: Silo, layout: Layout = LAYOUT) -> dict[str, NDArray[np.float32]]:
    """Read the client's last update as the coordinator has stored it."""
    path = f"/v1/federations/{silo.federation_id}/clients/{silo.client_id}/adapter"
    return tensors_of(silo.http.get(path), layout)


def show(served: Served, federation_id: str, number: int) -> dict[str, Any]:
    """Read a round as an operator."""
    answer = served.admin.get(f"/v1/federations/{federation_id}/rounds/{number}")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def wait_for(
    served: Served, federation_id: str, number: int, state: str, seconds: float = 60.0
) -> dict[str, Any]:
    """Wait until a round is in a state; return its view."""
    wait_until(lambda: served.round_state(federation_id, number) == state, seconds)
    return show(served, federation_id, number)


def one_round(
    served: Served, federation_id: str, silos: list[Silo], number: int, fill: list[float]
) -> dict[str, Any]:
    """Deliver for all silos; return the published round."""
    for silo, value in zip(silos, fill, strict=True):
        deliver(silo, number, values(value))
    return wait_for(served, federation_id, number, "published")
