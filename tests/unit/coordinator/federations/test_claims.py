"""Claims of federations and rounds, for all kinds of plans: exactly these sentences."""

from __future__ import annotations

from itertools import product

import pytest

from coordinator.federations.claims import UpdateCounts, federation_claims, round_claims
from coordinator.strategies.opening import open_plan
from schemas.messages.federations import FederationPlan
from tests.scene.coordinator import PROFILE, Served, Silo
from tests.scene.plans import federation_plan
from tests.scene.rounds import PLAN, deliver, running, try_join, values

IDENTITY = {
    False: "Clients sign every request with keys that never leave them",
    True: "bearer credentials: anyone who reads decrypted requests can impersonate them",
}
MEMBERS = {
    "server": "it could add members that do not exist",
    "tofu": "only if it reuses an existing name",
    "pinned": "the coordinator cannot add a member undetected",
}


SIGNATURES = {
    "plain": ({}, "clipped sketches of gradients without noise: the operator can reconstruct text from them"),
    "private": (
        {"dp": {"epsilon": 4}},
        "Sketches: record-level (4, 1e-05)-differential privacy against everybody, the coordinator",
    ),
}
POISON = {
    "fedavg": ({"name": "fedavg"}, "members are trusted not to poison"),
    "off": ({"name": "fedmosaic", "options": {"guard": "off"}}, "members are trusted not to poison"),
    "on": (
        {"name": "fedmosaic"},
        "own update (35 % if fewer than four others have most of the weight, 70 % if it is the only one)",
    ),
    "strict": (
        {"name": "fedmosaic", "options": {"guard": "strict"}},
        "a fifth of the length of that client's own update, and all others together at most 70 %",
    ),
}


SERVED = {
    "fedavg": "weighted mean of what members sent",
    "ditto": "weighted mean of what members sent",
    "fedprox": "weighted mean of what members sent",
    "fedmosaic": "mixtures of the updates of members relevant to them",
    "ca_pfl": "weighted mean of what members sent",
    "het_lora": "weighted mean of what members sent",
    "fedsa_lora": "weighted mean of the A that members sent; B never leaves",
    "ffa_lora": "weighted mean of the B that members sent",
    "lora_fair": "weighted mean of the A that members sent",
    "flora": "the weighted sum of the products B A",
    "fedex_lora": "means of A and of B of a round's members, and the remainder of their mean product",
}
ALONE = {
    "fedmosaic": "Where only one peer is relevant, a member can compute that peer's adapter",
    "flora": "With two members, each can compute the other's product",
}


@pytest.mark.parametrize("strategy", SERVED)
@pytest.mark.parametrize("least", [1, 2, 3])
@pytest.mark.parametrize("updates", [0, 1, 2, 3, 4, 5])
def test_claims_state_what_members_learn_of_others(strategy: str, least: int, updates: int) -> None:
    plan = federation_plan(strategy, privacy={"min_voices": least})
    federation = federation_claims(open_plan(plan))
    claims = " ".join(federation)
    assert SERVED[strategy] in claims
    assert "confidential in transit and from other clients" not in claims
    assert (ALONE.get(strategy, "With two members, each can compute what the other sent") in claims) is (
        least == 1
    )
    assert ("guesses a member's signature" in claims) is (least == 1 and strategy == "fedmosaic")
    assert (f"made of {least} other members (privacy.min_voices)" in claims) is (least > 1)
    assert (f"{least - 1} of them can compute the remainder" in claims) is (least > 1)
    of_this = " ".join(round_claims(open_plan(plan), UpdateCounts(updates, 0))[len(federation) :])
    assert ("may be one other member's alone" in of_this) is (least == 1 and updates in (1, 2))
    assert ("keeps its own adapter unless" in of_this) is (least > 1 and 0 < updates <= least)


@pytest.mark.parametrize(("bearer", "roster"), [*product(IDENTITY, MEMBERS)])
@pytest.mark.parametrize(("signatures", "poison"), [*product(SIGNATURES, POISON)])
def test_claims_follow_from_identity_roster_sketches_and_guard(
    bearer: bool, roster: str, signatures: str, poison: str
) -> None:
    (signing, hidden), (strategy, bound) = SIGNATURES[signatures], POISON[poison]
    plan = federation_plan(
        strategy, signature=signing, privacy={"allow_bearer_clients": bearer, "roster_policy": roster}
    )
    allowed = [
        hidden,
        "may be one other member's alone (privacy.min_voices 1)",
        bound,
        "server operator is trusted; what clients send is confidential in transit.",
        SERVED[strategy["name"]],
        "member that compares rounds",
        IDENTITY[bearer],
        MEMBERS[roster],
        "operator sees adapters, scores, counts of examples and bytes",
    ]
    claims = federation_claims(open_plan(plan))
    assert len(claims) == len(allowed)
    assert all(fragment in claim for fragment, claim in zip(allowed, claims, strict=True)), claims


def test_a_federation_is_shown_with_its_claims(coordinator: Served) -> None:
    body = {"name": "a", "strategy": {"name": "fedmosaic"}, "signature": {"dp": {"epsilon": 1}}}
    shown = coordinator.admin.post("/v1/federations", json=body).json()
    assert shown["claims"] == federation_claims(open_plan(FederationPlan.model_validate(shown["plan"])))


@pytest.mark.parametrize(
    ("counted", "sentences"),
    [
        (UpdateCounts(0, 0), []),
        (UpdateCounts(1, 0), ["The only update does not report the privacy cost of its client's sketches."]),
        (
            UpdateCounts(1, 1, 1, 2.5),
            ["came with a bearer credential.", "The only update reports", "2.5 so far"],
        ),
        (UpdateCounts(2, 0), ["all were signed", "2 updates, none reports the privacy cost of its client's"]),
        (UpdateCounts(3, 2, 1, 0.5), ["2 came with bearer credentials.", "3 updates, 1 reports the privacy"]),
        (
            UpdateCounts(2, 1, 2, 1.25),
            ["1 came with a bearer", "2 report", "their clients' sketches, at most"],
        ),
    ],
    ids=["no update yet", "the only one does not", "the only one does", "none does", "one does", "all do"],
)
def test_round_claims_state_epsilon_of_private_sketches(counted: UpdateCounts, sentences: list[str]) -> None:
    plan = federation_plan(signature={"dp": {"epsilon": 4}})
    more = " ".join(round_claims(open_plan(plan), counted)[len(federation_claims(open_plan(plan))) :])
    assert bool(more) == bool(sentences)
    assert all(fragment in more for fragment in sentences), more


def test_round_claims_count_signed_and_bearer_updates(coordinator: Served) -> None:
    federation_id, silos = running(coordinator, **PLAN | {"privacy": {"allow_bearer_clients": True}})
    request = {"token": coordinator.enrolment_token(federation_id, "b"), "name": "b", "profile": PROFILE}
    created = coordinator.http().post("/v1/enrolments", json=request).json()
    bearer = Silo(created["client_id"], federation_id, silos[0].key, coordinator.http(created["credential"]))
    for silo in (*silos, bearer):
        assert try_join(silo, 1).status_code == 200
    before = _claims(coordinator, federation_id)
    assert before == coordinator.admin.get(f"/v1/federations/{federation_id}").json()["claims"]
    deliver(silos[0], 1, values(1.0))
    alone = "With {}, weights that a member is served may be one other member's alone."
    signed = "The only update was signed with its client's key."
    assert _claims(coordinator, federation_id) == [*before, alone.format("1 update"), signed]
    deliver(bearer, 1, values(1.0))
    assert _claims(coordinator, federation_id) == [
        *before,
        alone.format("2 updates"),
        "Of 2 updates, 1 came with a bearer credential.",
    ]


def _claims(coordinator: Served, federation_id: str) -> list[str]:
    claims: list[str] = coordinator.admin.get(f"/v1/federations/{federation_id}/rounds/1").json()["claims"]
    return claims


VISIBLE_PARTS = {
    "pinned": "sees only sums over at least 5 members, even if it lies, while fewer than a third",
    "tofu": "sees only sums over at least 5 members if it follows the protocol, while fewer than a third",
    "server": "sees only sums over at least 5 members if it follows the protocol, while fewer than a third",
}


@pytest.mark.parametrize("roster", MEMBERS)
@pytest.mark.parametrize("masking", ["pairwise", "none"])
@pytest.mark.parametrize("scores", ["summed", "own"])
def test_claims_of_secure_sums_follow_their_options(roster: str, masking: str, scores: str) -> None:
    plan = federation_plan(
        rounds={"min_clients": 5},
        privacy={
            "roster_policy": roster,
            "secure_sum": {"masking": masking, "scores": scores, "minimum": 5},
        },
    )
    masked = masking == "pairwise"
    allowed = [
        VISIBLE_PARTS[roster] if masked else "without masks (privacy.secure_sum.masking none)",
        "at least 5 members (privacy.secure_sum.minimum): in the smallest, the 4 others together",
        "A member can add anything to a sum, without limit and without being named",
        "the server operator sees sums of updates" if masked else "The server operator is trusted",
        "one model, changed by the weighted mean",
        "a member that compares rounds",
        IDENTITY[False],
        MEMBERS[roster],
        "Sums have no noise",
        "sees who took part, when and with how many bytes, and the "
        + ("mean losses of a sum's members" if scores == "summed" else "scores of each member"),
    ]
    claims = federation_claims(open_plan(plan))
    assert len(claims) == len(allowed)
    assert all(fragment in claim for fragment, claim in zip(allowed, claims, strict=True)), claims
    assert round_claims(open_plan(plan), UpdateCounts(0, 0)) == claims
    added = round_claims(open_plan(plan), UpdateCounts(6, 0))[len(claims) :]
    assert added == [
        "6 members are ready for the sum of this round or in it; all but one of them together can compute "
        "what the remaining one sent."
    ]
    assert ("could invent members" in " ".join(claims)) is (masked and roster != "pinned")


@pytest.mark.parametrize(
    ("strategy", "sentence"),
    [
        ("fedsa_lora", "changes of A that"),
        ("ffa_lora", "changes of B that"),
        ("fedavg", "of the changes that"),
        ("fed_vemoe", "one bank of experts"),
    ],
)
def test_claims_of_secure_sums_name_the_summed_part(strategy: str, sentence: str) -> None:
    plan = federation_plan(strategy, privacy={"secure_sum": {}})
    assert sentence in federation_claims(open_plan(plan))[4]


@pytest.mark.parametrize(
    ("summed", "choices"),
    [
        ({"masking": "none"}, "The coordinator sees which experts each member uses."),
        ({"k_min": 4}, "the smallest sum is of 4 - k others, and 3 that lie together have"),
        ({}, "the counts can show which expert a newcomer uses"),
        ({"k_min": 4}, "of at least 4 (privacy.secure_sum.k_min): in the smallest, the 3 others can compute"),
    ],
)
def test_claims_of_banks_state_who_sees_choices(summed: dict[str, object], choices: str) -> None:
    plan = federation_plan("fed_vemoe", privacy={"secure_sum": summed})
    assert choices in " ".join(federation_claims(open_plan(plan)))
