"""Ranks sent under CA-PFL: the coordinator counts the ranks with values in each update."""

from __future__ import annotations

from typing import Any

from schemas.messages.recipes import Recipe
from tests.scene.coordinator import Served, Silo, coordinator_fixture
from tests.scene.operator import Operator
from tests.scene.rounds import Tensors, coded_body, deliver, join, layout_for, put, url, wait_for
from tests.scene.tensors import random_tensors

FORM: dict[str, Any] = {"layers": 2, "shapes": {"q": [5, 6], "down": [4, 5]}}
RECIPE = Recipe(reference="served", density=0.9, values="int8")
PLAN: dict[str, Any] = {
    "strategy": {"name": "ca_pfl"},
    "adapter": {"kind": "lora", "rank": 2, "blocks": 1, "roles": ["q", "down"]},
    "rounds": {"total": 3, "min_clients": 3, "collect_seconds": 600},
    "wire": {"recipe": RECIPE.model_dump()},
    "signature": {"dim": 4},
}


served = coordinator_fixture("each", tick_seconds=0.05)


def start_federation(served: Served, **plan: Any) -> list[Silo]:
    federation_id = served.federation(**PLAN | plan)
    silos = [served.enrol(federation_id, name, **FORM) for name in ("aster", "birch", "cedar")]
    served.start_federation(federation_id)
    return silos


def clear_rank(change: Tensors, name: str, rank: int) -> None:
    """Leave out one rank of a tensor: a row of A, a column of B."""
    change[name][(rank,) if name.endswith(".A") else (slice(None), rank)] = 0


def send_update(silo: Silo, change: Tensors) -> None:
    base = join(silo, 1)
    body, _ = coded_body(silo, 1, base, change, RECIPE, against=base)
    answer = put(silo, 1, body)
    assert answer.status_code == 201, answer.text


def test_sent_ranks_exclude_ranks_without_values(served: Served) -> None:
    aster, birch, cedar = start_federation(served)
    modules = sorted(name.removesuffix(".A") for name in layout_for(aster) if name.endswith(".A"))
    fewer = random_tensors(layout_for(aster), 7)
    for module in modules[:1]:
        clear_rank(fewer, f"{module}.A", 1)
        clear_rank(fewer, f"{module}.B", 1)
    clear_rank(fewer, f"{modules[1]}.A", 0)  # its column of B has values
    send_update(aster, fewer)
    send_update(birch, random_tensors(layout_for(birch), 7))
    deliver(
        cedar, 1, random_tensors(layout_for(cedar), 7)
    )  # dense: the state itself, which does not say what is new
    total = 2 * len(modules)
    shown = wait_for(served, aster.federation_id, 1, "published")
    assert {client["name"]: client["sent_ranks"] for client in shown["clients"]} == {
        "aster": {"sent": total - 1, "of": total},
        "birch": {"sent": total, "of": total},
        "cedar": None,
    }
    (row,) = aster.http.get(url(aster, 1)).json()["clients"]
    assert row["sent_ranks"]["sent"] == total - 1
    table = Operator(served)("round", "show", aster.federation_id, "1")
    assert "ranks sent" in table
    assert f"{total - 1} of {total}" in table


def test_other_strategies_count_no_sent_ranks(served: Served) -> None:
    silos = start_federation(served, strategy={"name": "fedavg"})
    for silo in silos:
        send_update(silo, random_tensors(layout_for(silo), 7))
    shown = wait_for(served, silos[0].federation_id, 1, "published")
    assert [client["sent_ranks"] for client in shown["clients"]] == [None] * 3
    assert "ranks sent" not in Operator(served)("round", "show", silos[0].federation_id, "1")
