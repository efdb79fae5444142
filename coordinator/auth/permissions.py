"""Check permissions by role and federation. Every route names its callers by one of the aliases at the
end of this file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

from anyio import to_thread
from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer

from coordinator.auth import nonces
from coordinator.auth.authentication import Member, Person, authenticated
from coordinator.auth.nonces import ReadNonces
from coordinator.errors import Forbidden, NotFound
from coordinator.http.dependencies import database_of
from coordinator.http.params import ClientId, FederationId
from schemas.messages.tokens import PersonRole

_bearer_scheme = HTTPBearer(
    auto_error=False,
    scheme_name="bearer",
    description="A person's token, or a client's credential where the plan allows bearer clients. "
    "Other clients send Signature-Input and Signature (RFC 9421) instead.",
)


IDENTIFIED: dict[str, Any] = {"security": [{_bearer_scheme.scheme_name: []}]}
"""OpenAPI security requirement for routes that do not use the aliases below."""


def _caller(request: Request, _: Annotated[object, Security(_bearer_scheme)]) -> Person | Member:
    return authenticated(request)


Caller = Annotated[Person | Member, Depends(_caller)]
"""Any authenticated caller."""


def _caller_anywhere(request: Request, _: Annotated[object, Security(_bearer_scheme)]) -> Person:
    caller = authenticated(request, anywhere=True)
    if not isinstance(caller, Person):
        raise Forbidden(needs="auditor")
    return caller


def _person_of(caller: Person | Member, role: PersonRole) -> Person:
    if not isinstance(caller, Person) or not caller.at_least(role):
        raise Forbidden(needs=role)
    return caller


# Async, since these checks are too short for a thread of the pool.
async def _admin(caller: Caller) -> Person:
    return _person_of(caller, "admin")


async def _operator(caller: Caller) -> Person:
    return _person_of(caller, "operator")


async def _auditor(caller: Caller) -> Person:
    return _person_of(caller, "auditor")


def _member_of_any(caller: Person | Member) -> Member:
    if not isinstance(caller, Member):
        raise Forbidden(needs="client")
    return caller


def member_of(federation_id: str, caller: Person | Member) -> Member:
    """Return the caller as a client of a federation.

    Raises:
        Forbidden: the caller is a person.
        NotFound: the client belongs to another federation.
    """
    member = _member_of_any(caller)
    if member.federation_id != federation_id:
        raise NotFound
    return member


async def _any_member(request: Request, caller: Caller) -> Member:
    member = _member_of_any(caller)
    await _accept_once(request, member)
    return member


async def _member_of(request: Request, federation_id: FederationId, caller: Caller) -> Member:
    member = member_of(federation_id, caller)
    await _accept_once(request, member)
    return member


async def _downloading_member(request: Request, federation_id: FederationId, caller: Caller) -> Member:
    member = member_of(federation_id, caller)
    await _accept_once_globally(request, member)
    return member


async def _accept_once(request: Request, caller: Person | Member) -> None:
    """Accept a signed request once, before its body is read; on all replicas unless it is a GET.

    Raises:
        RequestReplayed: the request was received before.
    """
    if request.method == "GET":
        read_once(request, caller)
    else:
        await _accept_once_globally(request, caller)


async def _accept_once_globally(request: Request, caller: Person | Member) -> None:
    """Accept a signed request once across all replicas; bearer requests have no nonce."""
    if isinstance(caller, Member) and caller.public_key is not None and caller.signed is not None:
        await to_thread.run_sync(nonces.use, database_of(request), caller.public_key, caller.signed)


def read_once(request: Request, caller: Person | Member) -> None:
    """Accept a signed read once in this process.

    Raises:
        RequestReplayed: the request was answered before.
    """
    if isinstance(caller, Member) and caller.public_key is not None and caller.signed is not None:
        reads: ReadNonces = request.app.state.reads
        reads.use(caller.public_key, caller.signed.nonce)


async def _caller_about(federation_id: FederationId, client_id: ClientId, caller: Caller) -> Person | Member:
    """Raise NotFound if a client names any client but itself."""
    # 404 and not 403: a client must not learn which other clients exist.
    if isinstance(caller, Member) and (caller.federation_id, caller.client_id) != (federation_id, client_id):
        raise NotFound
    return caller


_CallerAbout = Annotated[Person | Member, Depends(_caller_about)]


async def _admin_of_client(caller: _CallerAbout) -> Person:
    return _person_of(caller, "admin")


async def _auditor_of_client(caller: _CallerAbout) -> Person:
    return _person_of(caller, "auditor")


def _reader_of(federation_id: str, caller: Person | Member) -> Person | Member:
    if isinstance(caller, Member) and caller.federation_id != federation_id:
        raise NotFound
    return caller


async def _reader(request: Request, federation_id: FederationId, caller: Caller) -> Person | Member:
    reader = _reader_of(federation_id, caller)
    await _accept_once(request, reader)
    return reader


async def _downloading_reader(
    request: Request, federation_id: FederationId, caller: Caller
) -> Person | Member:
    reader = _reader_of(federation_id, caller)
    await _accept_once_globally(request, reader)
    return reader


AsAdmin = Annotated[Person, Depends(_admin)]
"""An admin."""

AsOperator = Annotated[Person, Depends(_operator)]
"""An operator or an admin."""

AsAuditor = Annotated[Person, Depends(_auditor)]
"""Any person."""

AsPersonAnywhere = Annotated[Person, Depends(_caller_anywhere)]
"""Any person, also with a role in some federations only: the route leaves out the others."""

AsAdminOfClient = Annotated[Person, Depends(_admin_of_client)]
"""An admin; a client gets 404 for any client but itself."""

AsAuditorOfClient = Annotated[Person, Depends(_auditor_of_client)]
"""Any person; a client gets 404 for any client but itself."""

AnyMember = Annotated[Member, Depends(_any_member)]
"""A client of any federation."""

AsMember = Annotated[Member, Depends(_member_of)]
"""A client of the federation in the path, else 404."""

AsReader = Annotated[Person | Member, Depends(_reader)]
"""Any person, or a client of the federation in the path."""

DownloadingMember = Annotated[Member, Depends(_downloading_member)]
"""A client of the federation in the path; its signature is valid for one download across all replicas."""

DownloadingReader = Annotated[Person | Member, Depends(_downloading_reader)]
"""Any person, or a client of the federation in the path; a signature is valid for one download."""

CALLERS: Final[Mapping[Callable[..., object], str]] = {
    _admin: "an admin",
    _operator: "an operator or an admin",
    _auditor: "any person",
    _caller_anywhere: "any person",
    _admin_of_client: "an admin",
    _auditor_of_client: "any person",
    _any_member: "a client",
    _member_of: "a client of the federation",
    _reader: "any person, or a client of the federation",
    _downloading_member: "a client of the federation",
    _downloading_reader: "any person, or a client of the federation",
    _caller: "any person or client",
}
"""Who may call a route, by the dependency of the aliases above."""
