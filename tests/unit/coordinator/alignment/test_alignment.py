"""Packs over HTTP: who may store one, which are refused, and the effect of a pack."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from schemas.wire.digests import digest_of
from tests.scene.alignment import (
    ERRORS,
    LARGE,
    PIVOT,
    aligned,
    deliver_pack,
    pack_body,
    pack_tensors,
    put_pack,
    refusal,
)
from tests.scene.coordinator import Served, Silo
from tests.scene.rounds import join, put, try_join, update_body, values, wait_for, weights


def test_packs_are_stored_once_and_served_unchanged(coordinator: Served) -> None:
    federation_id = aligned(coordinator)
    silo = coordinator.enrol(federation_id, "a")
    path = f"/v1/federations/{federation_id}/alignments/{PIVOT}"
    assert refusal(silo.http.get(path)) == (404, "not-found")
    content = pack_body(federation_id, PIVOT, compress=True)
    stored = deliver_pack(silo.http, federation_id, PIVOT, content, **{"Content-Encoding": "zstd"})
    assert stored.status_code == 201, stored.text
    assert stored.json()["digest"] == digest_of(content)
    again = deliver_pack(silo.http, federation_id, PIVOT, content, **{"Content-Encoding": "zstd"})
    assert (again.status_code, again.json()) == (200, stored.json())
    second = pack_body(federation_id, PIVOT, selected=["b0.v"])
    assert refusal(deliver_pack(silo.http, federation_id, PIVOT, second)) == (409, "upload-conflict")
    with silo.http.stream("GET", path) as answer:
        assert answer.headers["content-encoding"] == "zstd"
        assert b"".join(answer.iter_raw()) == content
    with silo.http.stream("GET", path, headers={"Range": "bytes=3-9"}) as answer:
        assert (answer.status_code, b"".join(answer.iter_raw())) == (206, content[3:10])
    listed = silo.http.get(f"/v1/federations/{federation_id}/alignments").json()["items"]
    assert [item["base_model"] for item in listed] == [PIVOT]
    assert listed[0]["selected"] == ["b0.q"]
    assert listed[0]["errors"]["b0.v"] == ERRORS


def test_clients_deliver_the_packs_of_their_base_models(coordinator: Served) -> None:
    federation_id = aligned(coordinator)
    pivotal = coordinator.enrol(federation_id, "pivotal")
    second = coordinator.enrol(federation_id, "other", base_model=LARGE)
    assert refusal(put_pack(pivotal.http, federation_id, LARGE)) == (403, "forbidden")
    assert refusal(put_pack(second.http, federation_id, PIVOT)) == (403, "forbidden")
    assert refusal(put_pack(second.http, federation_id, LARGE)) == (409, "pivot-pack-missing")
    assert put_pack(pivotal.http, federation_id, PIVOT).status_code == 201
    assert put_pack(second.http, federation_id, LARGE).status_code == 201


HOSTILE: dict[str, tuple[str, dict[str, Any] | None, dict[str, Any], str]] = {
    "a frame alone": (LARGE, {"b0.q.A": np.ones((2, 8), np.float32)}, {}, "tensor-schema"),
    "an unknown role": (
        LARGE,
        pack_tensors(LARGE) | {"b0.k.A": np.ones((2, 8), np.float32)},
        {},
        "tensor-schema",
    ),
    "another rank": (
        LARGE,
        pack_tensors(LARGE) | {"b0.q.A": np.ones((3, 8), np.float32)},
        {},
        "tensor-schema",
    ),
    "responses of another than the pivot": (LARGE, pack_tensors(LARGE, responses=True), {}, "tensor-schema"),
    "a pivot without responses": (PIVOT, pack_tensors(PIVOT, responses=False), {}, "tensor-schema"),
    "responses of other tokens": (
        PIVOT,
        pack_tensors(PIVOT) | {"b0.q.z": np.ones((6, 2), np.float16)},
        {},
        "tensor-schema",
    ),
    "frames in halves": (
        LARGE,
        pack_tensors(LARGE) | {"b0.q.A": np.ones((2, 8), np.float16)},
        {},
        "tensor-dtype",
    ),
    "NaN": (
        LARGE,
        pack_tensors(LARGE) | {"b0.q.A": np.full((2, 8), np.nan, np.float32)},
        {},
        "tensor-nonfinite",
    ),
    "another base model": (LARGE, None, {"base_model": "x-000000000000"}, "metadata"),
    "another federation": (LARGE, None, {"federation": "fed_0"}, "metadata"),
    "a selection it does not have": (LARGE, None, {"selected": ["b1.q"]}, "metadata"),
    "a selection told twice": (LARGE, None, {"selected": ["b0.q", "b0.q"]}, "metadata"),
    "no errors": (LARGE, None, {"errors": {}}, "metadata"),
    "errors of one module only": (LARGE, None, {"errors": {"b0.q": ERRORS}}, "metadata"),
    "another alignment set than the pivot's": (
        LARGE,
        None,
        {"alignment_set": "sha256:" + "6" * 64},
        "metadata",
    ),
}


@pytest.fixture(scope="module")
def with_pivot(coordinator: Served) -> str:
    federation_id = aligned(coordinator)
    assert put_pack(coordinator.admin, federation_id, PIVOT).status_code == 201
    return federation_id


@pytest.mark.parametrize("case", HOSTILE)
def test_an_invalid_pack_is_refused(coordinator: Served, with_pivot: str, case: str) -> None:
    base_model, arrays, fields, kind = HOSTILE[case]
    if base_model == PIVOT:
        with_pivot = aligned(coordinator)
    content = pack_body(with_pivot, base_model, arrays, **fields)
    assert refusal(deliver_pack(coordinator.admin, with_pivot, base_model, content)) == (422, kind)
    listed = coordinator.admin.get(f"/v1/federations/{with_pivot}/alignments").json()["items"]
    assert base_model not in [item["base_model"] for item in listed]


def test_packs_with_frames_outside_target_modules_are_refused(coordinator: Served) -> None:
    adapter = {"rank": 2, "blocks": 1, "roles": ["q", "v"], "target_modules": ["b0.q"]}
    federation_id = aligned(coordinator, adapter=adapter)
    assert refusal(put_pack(coordinator.admin, federation_id, PIVOT)) == (422, "tensor-schema")


def test_a_join_needs_a_stored_pack(coordinator: Served) -> None:
    federation_id = aligned(coordinator)
    silo = coordinator.enrol(federation_id, "a")
    coordinator.start_federation(federation_id)
    brief = silo.http.get(f"/v1/federations/{federation_id}/rounds/current").json()
    assert brief["alignment"]["pivot"] == PIVOT
    assert refusal(try_join(silo, 1)) == (409, "pack-missing")
    assert put_pack(silo.http, federation_id, PIVOT).status_code == 201
    assert try_join(silo, 1).status_code == 200


def test_packs_of_one_set_share_common_modules(coordinator: Served) -> None:
    federation_id = aligned(coordinator)
    digests = {}
    for base_model in (PIVOT, LARGE):
        stored = put_pack(coordinator.admin, federation_id, base_model)
        digests[base_model] = stored.json()["digest"]
    silos: list[tuple[Silo, str]] = [
        (coordinator.enrol(federation_id, name, base_model=name), name) for name in (PIVOT, LARGE)
    ]
    coordinator.start_federation(federation_id)
    bases = [join(silo, 1) for silo, _ in silos]
    for (silo, base_model), base, fill in zip(silos, bases, (1.0, 5.0), strict=True):
        wrong = update_body(silo, 1, base, values(fill))
        assert refusal(put(silo, 1, wrong)) == (422, "metadata")  # the pack in use must be named
        good = update_body(silo, 1, base, values(fill), pack=digests[base_model])
        assert put(silo, 1, good).status_code == 201
    wait_for(coordinator, federation_id, 1, "published")
    for silo, _ in silos:
        join(silo, 2)
        assert (weights(silo, 2)["b0.q.P"] == 3.0).all()
