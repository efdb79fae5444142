"""All routes with all kinds of callers: access exactly as in the table of policies below.

The routes come from the OpenAPI document, so that a route without a policy fails.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from coordinator.app import create_app
from coordinator.settings import Settings
from tests.scene.alignment import LARGE, PIVOT, acceptance_figures, aligned, put_pack
from tests.scene.coordinator import Served, Silo, slug
from tests.scene.rounds import join, put, update_body, values, wait_for
from tests.scene.stored_bank import store_bank

PEOPLE = ("auditor", "operator", "admin")
NOBODY = ("nobody", "wrong bearer")
MEMBERS = ("client", "neighbour")  # of one federation; the path is about the first of them
CLIENTS = (*MEMBERS, "stranger")  # who is of another federation
ROLES = (*NOBODY, *PEOPLE, *CLIENTS, "revoked")


@dataclass(frozen=True)
class Policy:
    """Roles that may use a route, and the refusal of other clients: 404 hides foreign objects."""

    allowed: tuple[str, ...]
    hidden_from: tuple[str, ...] = ()


ANYONE = Policy(ROLES)
NOT_SET_UP = Policy((), ROLES)  # this coordinator has no identity provider
AUDITORS = Policy(PEOPLE)
OPERATORS = Policy(("operator", "admin"))
ADMINS = Policy(("admin",))
ANY_CLIENT = Policy(CLIENTS)
OF_THE_FEDERATION = Policy(MEMBERS, ("stranger",))
READERS = Policy((*PEOPLE, *MEMBERS), ("stranger",))
MAKERS = Policy(("operator", "admin", *MEMBERS), ("stranger",))
ABOUT_A_CLIENT = Policy(PEOPLE, ("neighbour", "stranger"))
REVOKING = Policy(("admin",), ("neighbour", "stranger"))
ITS_OWN = Policy(("operator", "admin", "client"), ("neighbour", "stranger"))

_F = "/v1/federations/{fid}"
POLICIES: dict[str, Policy] = {
    "GET /healthz": ANYONE,
    "GET /readyz": ANYONE,
    "GET /metrics": AUDITORS,
    "GET /v1/hello": ANYONE,
    "POST /v1/enrolments": ANYONE,
    "GET /v1/sign-in": NOT_SET_UP,
    "POST /v1/sign-in": NOT_SET_UP,
    "DELETE /v1/sign-in": Policy((), PEOPLE),  # likewise, once the person is known
    "POST /v1/tokens": ADMINS,
    "GET /v1/tokens": ADMINS,
    "GET /v1/tokens/{token_id}": ADMINS,
    "DELETE /v1/tokens/{token_id}": ADMINS,
    "GET /v1/audit": AUDITORS,
    "GET /v1/me": ANY_CLIENT,
    "PUT /v1/me/key": ANY_CLIENT,
    "GET /v1/strategies": AUDITORS,
    "POST /v1/federations": OPERATORS,
    "GET /v1/federations": AUDITORS,
    f"GET {_F}": AUDITORS,
    f"DELETE {_F}": ADMINS,
    f"POST {_F}/start": OPERATORS,
    f"POST {_F}/pause": OPERATORS,
    f"POST {_F}/finish": OPERATORS,
    f"POST {_F}/enrolment-tokens": OPERATORS,
    f"GET {_F}/enrolment-tokens": OPERATORS,
    f"GET {_F}/clients": AUDITORS,
    f"GET {_F}/clients/{{cid}}": ABOUT_A_CLIENT,
    f"DELETE {_F}/clients/{{cid}}": REVOKING,
    f"GET {_F}/clients/{{cid}}/adapter": ITS_OWN,
    f"GET {_F}/roster": READERS,
    f"GET {_F}/events": READERS,
    f"GET {_F}/plan": READERS,
    f"GET {_F}/report": AUDITORS,
    f"GET {_F}/rounds": READERS,
    f"GET {_F}/rounds/{{n}}": READERS,
    f"GET {_F}/rounds/{{n}}/relevance": READERS,
    f"GET {_F}/rounds/current": OF_THE_FEDERATION,
    f"PUT {_F}/rounds/{{n}}/progress": OF_THE_FEDERATION,
    f"POST {_F}/rounds/{{n}}/join": OF_THE_FEDERATION,
    f"GET {_F}/rounds/{{n}}/weights": OF_THE_FEDERATION,
    f"GET {_F}/rounds/{{n}}/manifest": OF_THE_FEDERATION,
    f"PUT {_F}/rounds/{{n}}/update": OF_THE_FEDERATION,
    f"PUT {_F}/rounds/{{n}}/scores": OF_THE_FEDERATION,
    f"PUT {_F}/rounds/{{n}}/ready": OF_THE_FEDERATION,
    f"GET {_F}/rounds/{{n}}/secure-sum": OF_THE_FEDERATION,
    f"GET {_F}/rounds/{{n}}/secure-sum/{{session}}/{{step}}": OF_THE_FEDERATION,
    f"PUT {_F}/rounds/{{n}}/secure-sum/{{session}}/{{step}}": OF_THE_FEDERATION,
    f"GET {_F}/experts": READERS,
    f"GET {_F}/experts/{{expert}}/{{revision}}": OF_THE_FEDERATION,
    f"GET {_F}/anchors": READERS,
    f"PUT {_F}/anchors": OPERATORS,
    f"GET {_F}/alignments": READERS,
    f"GET {_F}/alignments/{{base_model}}": MAKERS,
    f"PUT {_F}/alignments/{{base_model}}": MAKERS,
    f"DELETE {_F}/alignments/{{base_model}}": OPERATORS,
    f"PUT {_F}/alignments/{{base_model}}/acceptance": MAKERS,
}


def _operations() -> list[str]:
    paths = create_app(Settings(_env_file=None)).openapi()["paths"]
    return [f"{method.upper()} {path}" for path, methods in paths.items() for method in methods]


@dataclass
class World:
    """Two federations, one with a published round and alignment packs, and a caller of every role."""

    served: Served
    callers: dict[str, httpx.Client]
    client: Silo
    pack: str

    def path(self, operation: str, role: str) -> str:
        """Fill in the path's ids; an object that an allowed caller deletes is created for it."""
        template, federation_id, client_id = (
            operation.partition(" ")[2],
            self.client.federation_id,
            self.client.client_id,
        )
        if operation.endswith(("/start", "/pause", "/finish")) or operation == f"DELETE {_F}":
            federation_id = self.served.federation(name="passing")
        if operation.startswith("DELETE") and "{cid}" in template and role == "admin":
            client_id = self.served.enrol(
                federation_id, f"passing-{next(_names)}", base_model=LARGE
            ).client_id
        if operation.startswith("DELETE") and "{base_model}" in template and role in ("operator", "admin"):
            federation_id = self.with_packs("passing")
        token = ""
        if "{token_id}" in template:
            created = self.served.admin.post("/v1/tokens", json={"role": "auditor", "name": "passing"})
            token = created.json()["id"]
        names = {"fid": federation_id, "cid": client_id, "token_id": token, "base_model": LARGE}
        return template.format(**names, n=1, session=1, step=0, expert=1, revision=6)

    def with_packs(self, name: str) -> str:
        """Make a federation with an alignment pack of each base model."""
        federation_id = aligned(self.served, name=name)
        for base_model in (PIVOT, LARGE):
            assert put_pack(self.served.admin, federation_id, base_model).status_code == 201
        return federation_id

    def body(self, operation: str) -> dict[str, Any] | None:
        """Return a body that passes the checks before the check of the role, if any."""
        if operation.endswith("/acceptance"):
            return acceptance_figures(self.pack)
        return {} if operation.startswith(("PUT", "POST")) else None


_names = itertools.count()


@pytest.fixture(scope="module")
def world(coordinator: Served) -> World:
    privacy = {"roster_policy": "tofu"}  # otherwise the roster is nobody's but people's
    federation_id = aligned(coordinator, privacy=privacy, rounds={"total": 3, "min_clients": 2})
    for base_model in (PIVOT, LARGE):
        stored = put_pack(coordinator.admin, federation_id, base_model)
        assert stored.status_code == 201, stored.text
    pack = str(stored.json()["digest"])
    names = ("client", "neighbour", "revoked")
    client, neighbour, revoked = (coordinator.enrol(federation_id, name, base_model=LARGE) for name in names)
    gone = coordinator.admin.delete(f"/v1/federations/{federation_id}/clients/{revoked.client_id}")
    assert gone.status_code == 204
    coordinator.start_federation(federation_id)
    for silo, base in [(silo, join(silo, 1)) for silo in (client, neighbour)]:
        assert put(silo, 1, update_body(silo, 1, base, values(1.0), pack=pack)).status_code == 201
    wait_for(coordinator, federation_id, 1, "published")
    store_bank(coordinator.database, federation_id)
    callers = {
        "nobody": coordinator.http(),
        "wrong bearer": coordinator.http("tsr_adm_" + "A" * 43),
        **{role: coordinator.person(role) for role in PEOPLE},
        "client": client.http,
        "neighbour": neighbour.http,
        "stranger": coordinator.enrol(coordinator.federation(), "stranger").http,
        "revoked": revoked.http,
    }
    return World(coordinator, callers, client, pack)


def test_routes_and_policies_are_the_same() -> None:
    assert sorted(_operations()) == sorted(POLICIES)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("operation", _operations())
def test_access_to_a_route_follows_its_policy(world: World, operation: str, role: str) -> None:
    status, problem = _ask(world, operation, role)
    policy = POLICIES[operation]
    if role in policy.allowed:
        assert status < 500
        assert problem not in ("auth-missing", "credential-invalid", "key-revoked", "forbidden", "not-found")
    elif role in policy.hidden_from:
        assert (status, problem) == (404, "not-found")
    else:
        refusals = {"nobody": (401, "auth-missing"), "wrong bearer": (401, "credential-invalid")}
        assert (status, problem) == {**refusals, "revoked": (401, "key-revoked")}.get(
            role, (403, "forbidden")
        )


def _ask(world: World, operation: str, role: str) -> tuple[int, str]:
    method, caller = operation.partition(" ")[0], world.callers[role]
    body = world.body(operation)
    with caller.stream(method, world.path(operation, role), json=body) as answer:  # events do not end
        if answer.is_success:
            return answer.status_code, ""
        answer.read()
        return answer.status_code, slug(answer)
