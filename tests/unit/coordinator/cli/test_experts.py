"""`tessera experts` in a terminal of 80 columns."""

from __future__ import annotations

import json

from tests.scene.coordinator import Served
from tests.scene.operator import Operator
from tests.scene.stored_bank import PLAN, store_bank


def test_experts_are_listed_with_reasons_of_changes(coordinator: Served) -> None:
    plain, federation_id = coordinator.federation(), coordinator.federation(**PLAN)
    assert (
        Operator(coordinator, columns=80)("experts", plain)
        .splitlines()[0]
        .startswith("This federation has no bank of experts")
    )
    store_bank(coordinator.database, federation_id)
    lines = Operator(coordinator, columns=80)("experts", federation_id).splitlines()
    assert max(map(len, lines)) <= 80
    rows = [line.split() for line in lines if line.startswith("      ") and line[6].isdigit()]
    assert [row[:4] for row in rows] == [
        ["1", "active", "8", "of"],
        ["2", "merged", "into", "1"],
        ["3", "active", "3", "of"],
        ["4", "archived", "0", "of"],
        ["5", "active", "4", "of"],
    ]
    text = " ".join(" ".join(lines).split())
    assert "- round 5: expert 5 born: 5 of 15 members fit no expert" in text
    bank = json.loads(
        "\n".join(Operator(coordinator, columns=80)("experts", federation_id, "--json").splitlines())
    )
    assert [r["round"] for r in bank["rounds"]] == [6, 5, 4]
    assert len(bank["events"]) == 3
