"""Alignment packs, their anchors and acceptance tests, over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx
import numpy as np

from schemas.messages.alignment import AlignmentManifest, random_set
from schemas.messages.federations import AlignmentPlan
from schemas.wire.envelope import pack
from tests.scene.coordinator import PROFILE, Served, slug
from tests.scene.rounds import join, put, update_body, upload_headers, values, wait_for, weights

PIVOT, LARGE = PROFILE["base_model"], "tiny-l-aaaaaaaaaaaa"

SET = "sha256:" + "5" * 64

RANDOM_SET = random_set(AlignmentPlan(pivot=PIVOT), 2)

MODULES = ["b0.q", "b0.v"]

ERRORS = {"a": 0.1, "b_token": 0.9, "b_task": 0.5}

ANCHORS = {"anchors": [{"id": f"a{i}", "prompt": f"{i} + {i} =", "answer": f" {2 * i}"} for i in range(3)]}

WIDTH = {PIVOT: 6, LARGE: 8}


def aligned(served: Served, frames: str = "pca-tok", *, has_anchors: bool = True, **plan: Any) -> str:
    federation_id = served.federation(
        **(
            {
                "strategy": {
                    "name": "fedmosaic",
                    "options": {"sources": "all", "min_relevance": None, "guard": "off"},
                },
                "adapter": {"rank": 2, "blocks": 1, "roles": ["q", "v"]},
                "rounds": {"total": 2, "min_clients": 2, "collect_seconds": 600},
                "signature": {"dim": 4},
                "alignment": {"pivot": PIVOT, "frames": frames, "anchors": len(ANCHORS["anchors"])},
            }
            | plan
        )
    )
    if has_anchors:
        assert served.admin.put(f"/v1/federations/{federation_id}/anchors", json=ANCHORS).status_code == 201
    return federation_id


def pack_tensors(base_model: str, *, responses: bool | None = None) -> dict[str, Any]:
    d = WIDTH[base_model]
    arrays: dict[str, Any] = {}
    for module in MODULES:
        arrays[f"{module}.A"] = np.full((2, d), 0.5, np.float32)
        arrays[f"{module}.B"] = np.full((d + 1, 2), 0.25, np.float32)
    if base_model == PIVOT if responses is None else responses:
        for module in MODULES:
            arrays[f"{module}.z"] = np.ones((7, 2), np.float16)
            arrays[f"{module}.g"] = np.ones((3, 2), np.float16)
        arrays["offsets"] = np.arange(21, dtype=np.int32).reshape(7, 3)
    return arrays


def pack_body(
    federation_id: str,
    of: str,
    arrays: Mapping[str, Any] | None = None,
    /,
    *,
    compress: bool = False,
    **fields: Any,
) -> bytes:
    manifest = {
        "federation": federation_id,
        "recipe": {},
        "base_model": of,
        "alignment_set": SET,
        "selected": ["b0.q"],
        "errors": dict.fromkeys(MODULES, ERRORS),
    } | fields
    return pack(arrays or pack_tensors(of), AlignmentManifest.model_validate(manifest), compress=compress)


def deliver_pack(
    caller: httpx.Client, federation_id: str, base_model: str, content: bytes, **headers: str
) -> httpx.Response:
    return caller.put(
        pack_path(federation_id, base_model), content=content, headers=upload_headers(content) | headers
    )


def put_pack(
    caller: httpx.Client,
    federation_id: str,
    base_model: str,
    arrays: Mapping[str, Any] | None = None,
    /,
    **fields: Any,
) -> httpx.Response:
    """Deliver a pack of these tensors and members of the manifest."""
    return deliver_pack(
        caller, federation_id, base_model, pack_body(federation_id, base_model, arrays, **fields)
    )


def refusal(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, slug(answer)


GOOD_SCORES = {"loss": [0.1, 0.2, 0.1, 0.2, 0.1], "exact_match": [0.9, 0.8, 0.9, 0.8, 0.9]}

BAD_SCORES = {"loss": [0.9, 0.8, 0.9, 0.8, 0.9], "exact_match": [0.1, 0.2, 0.1, 0.2, 0.1]}


def direction_scores(source: str, target: str, *, zero: dict[str, Any] = BAD_SCORES) -> dict[str, Any]:
    endings = {"right": GOOD_SCORES, "zero": zero, "wrong_task": BAD_SCORES, "random_frames": BAD_SCORES}
    return {"source": source, "target": target, "learnt": GOOD_SCORES, "endings": endings}


def acceptance_figures(pack: str, verdict: str = "passed", **changes: Any) -> dict[str, Any]:
    back = direction_scores(LARGE, PIVOT, zero=BAD_SCORES if verdict == "passed" else GOOD_SCORES)
    return {
        "pack": pack,
        "verdict": verdict,
        "directions": [direction_scores(PIVOT, LARGE), back],
        "taught": 60,
        "steps": 50,
        "learning_rate": 0.003,
        "seed": 0,
    } | changes


def with_packs(served: Served) -> tuple[str, str]:
    """Make a federation with both packs; return its id and the digest of the other base model's pack."""
    federation_id = aligned(served)
    for base_model in (PIVOT, LARGE):
        stored = put_pack(served.admin, federation_id, base_model)
        assert stored.status_code == 201, stored.text
    return federation_id, str(stored.json()["digest"])


def pack_path(federation_id: str, base_model: str) -> str:
    return f"/v1/federations/{federation_id}/alignments/{base_model}"


def acceptance_path(federation_id: str, base_model: str = LARGE) -> str:
    return f"{pack_path(federation_id, base_model)}/acceptance"


def assert_weights_are_shared(
    served: Served, federation_id: str, of_pivot: str, of_other: str, *, across: bool
) -> None:
    """Run a round with a client of the pivot and two of the large model; check the mixtures."""
    pivots = served.enrol(federation_id, "pivot")
    others = [served.enrol(federation_id, name, base_model=LARGE) for name in ("a", "b")]
    served.start_federation(federation_id)
    bases = [join(silo, 1) for silo in (pivots, *others)]
    for silo, base, fill in zip((pivots, *others), bases, (1.0, 3.0, 5.0), strict=True):
        digest = of_pivot if silo is pivots else of_other
        assert put(silo, 1, update_body(silo, 1, base, values(fill), pack=digest)).status_code == 201
    wait_for(served, federation_id, 1, "published")
    # a newcomer shows what the rule does to those without an update, too
    newcomer = served.enrol(federation_id, "new", base_model=LARGE)
    by_client = {}
    for silo in (pivots, *others, newcomer):
        join(silo, 2)
        by_client[silo.client_id] = weights(silo, 2)["b0.q.P"]
    assert (by_client[pivots.client_id] == (3.0 if across else 1.0)).all()  # the mean of all, or its own
    assert (by_client[others[0].client_id] == (3.0 if across else 4.0)).all()
    assert (by_client[newcomer.client_id] == (3.0 if across else 4.0)).all()
