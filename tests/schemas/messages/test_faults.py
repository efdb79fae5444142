"""Faults of a message as people read them."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from schemas.messages.faults import complaints
from schemas.messages.federations import FederationPlan


@pytest.mark.parametrize(
    ("plan", "text"),
    [
        ({"strategy": {"name": "fedavg"}}, "name: missing; add it"),
        ({"round": {}}, "round: there is no such field; did you mean rounds?"),
        ({"rounds": {"totl": 3}}, "rounds.totl: there is no such field; did you mean total?"),
        (
            {"signature": {"dp": {"epsilon": 1, "delt": 1}}},
            "delt: there is no such field; did you mean delta?",
        ),
        ({"rounds": {"zzz": 3}}, "rounds.zzz: there is no such field"),
        ({"rounds": {"total": 0}}, "rounds.total: Input should be greater than or equal to 1"),
    ],
)
def test_each_fault_names_its_field_and_the_field_that_was_meant(plan: dict[str, object], text: str) -> None:
    whole = {"name": "x", "strategy": {"name": "fedavg"}} | plan
    if "missing" in text:
        del whole["name"]
    with pytest.raises(ValidationError) as refused:
        FederationPlan.model_validate(whole)
    assert text in complaints(refused.value, FederationPlan)
