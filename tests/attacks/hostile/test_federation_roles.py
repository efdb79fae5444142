"""All routes with persons whose role is valid in one federation only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import httpx
import pytest

from tests.attacks.hostile.test_authorisation_matrix import ANYONE, NOT_SET_UP, POLICIES
from tests.scene.alignment import LARGE, PIVOT, acceptance_figures, aligned, put_pack
from tests.scene.coordinator import Served, Silo, slug, start
from tests.scene.openid_provider import CLIENT, running_provider
from tests.scene.rounds import join, put, update_body, values, wait_for
from tests.scene.stored_bank import store_bank

pytestmark = pytest.mark.slow

ROLES = ("auditor", "operator", "admin")
ABOUT_ALL = ("GET /v1/federations", "GET /v1/strategies")
"""The one route about all federations that leaves out those without a role."""
SIGN_OUT = "DELETE /v1/sign-in"
"""After it the person's token is refused: tests/unit/coordinator/auth/test_sign_out.py."""


@dataclass
class RolesByFederation:
    """A federation with roles for groups, one without, and a person of each group.

    Attributes:
        inside: has a published round and packs.
        ending, passing, removed: one may be finished, one loses packs and clients, one is removed.
        outside: as `inside`, and of no group.
    """

    served: Served
    people: dict[str, httpx.Client]
    inside: Silo
    ending: str
    passing: str
    removed: str
    outside: Silo
    pack: str

    def ask(self, role: str, operation: str, silo: Silo) -> tuple[int, str]:
        method, _, template = operation.partition(" ")
        federation_id, client_id = silo.federation_id, silo.client_id
        if silo is self.inside and operation.endswith("/finish"):
            federation_id = self.ending
        if silo is self.inside and operation == "DELETE /v1/federations/{fid}":
            federation_id = self.removed
        elif silo is self.inside and method == "DELETE":  # what other routes need stays as it is
            federation_id = self.passing
            put_pack(self.served.admin, federation_id, LARGE)
            if "{cid}" in template:
                client_id = self.served.enrol(federation_id, f"of the {role}", base_model=LARGE).client_id
        path = template.format(
            fid=federation_id,
            cid=client_id,
            **{"token_id": "tok_none", "base_model": LARGE, "n": 1, "session": 1, "step": 0},
            **{"expert": 1, "revision": 6},
        )
        body = acceptance_figures(self.pack) if operation.endswith("/acceptance") else {}
        sent = {"json": body} if method in ("PUT", "POST") else {}
        with self.people[role].stream(method, path, **sent) as answer:  # events do not end
            if answer.is_success:
                return answer.status_code, ""
            answer.read()
            return answer.status_code, slug(answer)


def _published(served: Served, name: str) -> tuple[Silo, str]:
    """Make a federation with a published round, packs and a bank; return a client of it and its pack."""
    federation_id = aligned(served, name=name, rounds={"total": 3, "min_clients": 2})
    for base_model in (PIVOT, LARGE):
        stored = put_pack(served.admin, federation_id, base_model)
        assert stored.status_code == 201, stored.text
    pack = str(stored.json()["digest"])
    silos = [served.enrol(federation_id, silo, base_model=LARGE) for silo in ("aster", "birch")]
    served.start_federation(federation_id)
    for silo, base in [(silo, join(silo, 1)) for silo in silos]:
        assert put(silo, 1, update_body(silo, 1, base, values(1.0), pack=pack)).status_code == 201
    wait_for(served, federation_id, 1, "published")
    store_bank(served.database, federation_id)
    return silos[0], pack


@pytest.fixture(scope="module")
def scene(fresh_database: Callable[[str], str]) -> Iterator[RolesByFederation]:
    url = fresh_database("sqlite")
    before = start(url, tick_seconds=0.05)
    inside, pack = _published(before, "inside")
    outside, _ = _published(before, "outside")
    ending, passing = before.federation(name="ending"), aligned(before, name="passing")
    put_pack(before.admin, passing, PIVOT)
    removed = before.federation(name="removed")
    before.stop()
    ids = (inside.federation_id, ending, passing, removed)
    groups = ", ".join(f"{role}s={role}@{federation_id}" for role in ROLES for federation_id in ids)
    with running_provider() as provider:
        settings = {"oidc_issuer": provider.issuer, "oidc_client_id": CLIENT, "oidc_roles": groups}
        served = start(url, **settings)
        for role in ROLES:
            provider.know(role, groups=[f"{role}s"])
        people = {role: served.http(provider.token(role)) for role in ROLES}
        yield RolesByFederation(served, people, inside, ending, passing, removed, outside, pack)
        served.stop()


def _is_of_a_federation(operation: str) -> bool:
    return "{fid}" in operation


def _is_open(operation: str) -> bool:
    return POLICIES[operation] in (ANYONE, NOT_SET_UP) or operation in ABOUT_ALL


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("operation", list(filter(_is_of_a_federation, POLICIES)))
def test_a_federation_role_grants_its_own_federation(
    scene: RolesByFederation, operation: str, role: str
) -> None:
    status, problem = scene.ask(role, operation, scene.inside)
    if role in POLICIES[operation].allowed:
        assert status < 500
        assert problem not in ("auth-missing", "credential-invalid", "forbidden", "not-found")
    else:
        assert (status, problem) == (403, "forbidden")


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("operation", list(filter(_is_of_a_federation, POLICIES)))
def test_a_federation_role_grants_no_other_federation(
    scene: RolesByFederation, operation: str, role: str
) -> None:
    assert scene.ask(role, operation, scene.outside) == (403, "forbidden")


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    "operation", [name for name in POLICIES if not _is_of_a_federation(name) and name != SIGN_OUT]
)
def test_federation_roles_grant_no_global_routes(scene: RolesByFederation, operation: str, role: str) -> None:
    status, problem = scene.ask(role, operation, scene.outside)
    if _is_open(operation):
        assert (status < 500, problem in ("forbidden", "credential-invalid")) == (True, False)
    else:
        assert (status, problem) == (403, "forbidden")


@pytest.mark.parametrize("role", ROLES)
def test_the_list_contains_only_the_callers_federations(scene: RolesByFederation, role: str) -> None:
    shown = scene.people[role].get("/v1/federations").json()["items"]
    # Another test may have removed its federation.
    present = {item["id"] for item in shown} - {scene.removed}
    assert present == {scene.inside.federation_id, scene.ending, scene.passing}


def test_the_other_federation_is_unchanged(scene: RolesByFederation) -> None:
    path = f"/v1/federations/{scene.outside.federation_id}"
    shown = scene.served.admin.get(path).json()
    assert (shown["state"], shown["clients"]) == ("running", {"enrolled": 2, "revoked": 0})
    packs = scene.served.admin.get(f"{path}/alignments").json()
    assert {item["base_model"] for item in packs["items"]} == {PIVOT, LARGE}
