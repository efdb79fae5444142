"""Decide what a caller may do by its role and its federation. Refuses to know what is asked for beyond them.

Every route names who it is for by one of the aliases at the end of this file.
"""

from __future__ import annotations

from typing import Annotated, Any

from anyio import to_thread
from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer

from coordinator.auth import nonces
from coordinator.auth.authentication import Member, Person, authenticated
from coordinator.auth.nonces import Reads
from coordinator.errors import Forbidden, NotFound
from coordinator.http.dependencies import database_of
from coordinator.http.params import ClientId, FederationId
from schemas.messages.tokens import PersonRole

_documented = HTTPBearer(
    auto_error=False,
    scheme_name="bearer",
    description="A person's token, or a client's credential where the plan allows bearer clients. "
    "Other clients send Signature-Input and Signature (RFC 9421) instead.",
)


IDENTIFIED: dict[str, Any] = {"security": [{_documented.scheme_name: []}]}
"""Says in the API's document what the aliases below say by themselves."""


def _caller(request: Request, _: Annotated[object, Security(_documented)]) -> Person | Member:
    return authenticated(request)


Caller = Annotated[Person | Member, Depends(_caller)]
"""Whoever it is."""


def _person_of(caller: Person | Member, role: PersonRole) -> Person:
    if not isinstance(caller, Person) or not caller.at_least(role):
        raise Forbidden(needs=role)
    return caller


# What follows only looks at who was recognised, which is not worth a change of threads.
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


def member_of(fid: str, caller: Person | Member) -> Member:
    """Take a caller for a client of a federation.

    Raises:
        Forbidden: it is a person.
        NotFound: it is another federation's client.
    """
    member = _member_of_any(caller)
    if member.federation_id != fid:
        raise NotFound
    return member


async def _any_member(request: Request, caller: Caller) -> Member:
    member = _member_of_any(caller)
    await _once(request, member)
    return member


async def _member_of(request: Request, fid: FederationId, caller: Caller) -> Member:
    member = member_of(fid, caller)
    await _once(request, member)
    return member


async def _downloading_member(request: Request, fid: FederationId, caller: Caller) -> Member:
    member = member_of(fid, caller)
    await _once_anywhere(request, member)
    return member


async def _once(request: Request, caller: Person | Member) -> None:
    """Accept a signed request once, before its body is read; on all replicas if it may change something.

    Raises:
        Replayed: it came before.
    """
    if request.method == "GET":
        read_once(request, caller)
    else:
        await _once_anywhere(request, caller)


async def _once_anywhere(request: Request, caller: Person | Member) -> None:
    """Accept a signed request once, whichever replica it reaches; bearer tokens sign nothing."""
    if isinstance(caller, Member) and caller.public_key is not None and caller.signed is not None:
        await to_thread.run_sync(nonces.use, database_of(request), caller.public_key, caller.signed)


def read_once(request: Request, caller: Person | Member) -> None:
    """Answer a signed read once in this process.

    Raises:
        Replayed: it was answered before.
    """
    if isinstance(caller, Member) and caller.public_key is not None and caller.signed is not None:
        reads: Reads = request.app.state.reads
        reads.use(caller.public_key, caller.signed.nonce)


async def _caller_about(fid: FederationId, cid: ClientId, caller: Caller) -> Person | Member:
    """Hide all clients but itself from a client."""
    if isinstance(caller, Member) and (caller.federation_id, caller.client_id) != (fid, cid):
        raise NotFound
    return caller


_CallerAbout = Annotated[Person | Member, Depends(_caller_about)]


async def _admin_of_client(caller: _CallerAbout) -> Person:
    return _person_of(caller, "admin")


async def _auditor_of_client(caller: _CallerAbout) -> Person:
    return _person_of(caller, "auditor")


def _reader_of(fid: str, caller: Person | Member) -> Person | Member:
    if isinstance(caller, Member) and caller.federation_id != fid:
        raise NotFound
    return caller


async def _reader(request: Request, fid: FederationId, caller: Caller) -> Person | Member:
    reader = _reader_of(fid, caller)
    await _once(request, reader)
    return reader


async def _downloading_reader(request: Request, fid: FederationId, caller: Caller) -> Person | Member:
    reader = _reader_of(fid, caller)
    await _once_anywhere(request, reader)
    return reader


AsAdmin = Annotated[Person, Depends(_admin)]
"""An admin."""

AsOperator = Annotated[Person, Depends(_operator)]
"""An operator or an admin."""

AsAuditor = Annotated[Person, Depends(_auditor)]
"""Any person."""

AsAdminOfClient = Annotated[Person, Depends(_admin_of_client)]
"""An admin; a client finds nobody but itself in the path."""

AsAuditorOfClient = Annotated[Person, Depends(_auditor_of_client)]
"""Any person; a client finds nobody but itself in the path."""

AnyMember = Annotated[Member, Depends(_any_member)]
"""A client, of whichever federation."""

AsMember = Annotated[Member, Depends(_member_of)]
"""A client of the federation in the path; another's is not found."""

AsReader = Annotated[Person | Member, Depends(_reader)]
"""Any person, or a client of the federation in the path."""

DownloadingMember = Annotated[Member, Depends(_downloading_member)]
"""A client of the federation in the path, whose signature is good for one download on all replicas."""

DownloadingReader = Annotated[Person | Member, Depends(_downloading_reader)]
"""Any person, or a client of the federation in the path, whose signature is good for one download."""
