"""Routes by which people sign in at an identity provider, and sign out."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from coordinator.auth import sign_outs
from coordinator.auth.authentication import count_invalid_token
from coordinator.auth.oidc import SCOPE, IdentityProvider
from coordinator.auth.permissions import AsPersonAnywhere
from coordinator.auth.provider_requests import ProviderDown
from coordinator.errors import (
    AuthMissing,
    CredentialInvalid,
    Forbidden,
    Invalid,
    JsonMalformed,
    NotFound,
    RateLimited,
)
from coordinator.http.dependencies import TheDatabase
from coordinator.http.json_body import json_body, takes
from coordinator.http.problems import answers
from coordinator.storage import audit_log
from schemas.messages.sign_in import SignedInPerson, SignInProvider, SignInRequest

router = APIRouter(prefix="/v1/sign-in", tags=["about"])

_EXAMPLE = {
    "code": "SplxlOBeZQQYbYS6WxSbIA",
    "code_verifier": "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk",
    "redirect_uri": "https://tessera.example.org/",
    "nonce": "n-0S6_WzA2Mj-0S6_WzA2Mj",
}


def _provider(request: Request) -> IdentityProvider:
    provider: IdentityProvider | None = request.app.state.identity_provider
    if provider is None:
        raise NotFound
    return provider


TheProvider = Annotated[IdentityProvider, Depends(_provider)]
"""The identity provider that the settings name; it comes before a body is read."""


@router.get("", responses=answers(NotFound, ProviderDown))
def show_provider(provider: TheProvider) -> SignInProvider:
    """Return the identity provider where people sign in; 404 if the coordinator has none."""
    return SignInProvider(
        authorization_endpoint=provider.metadata()["authorization_endpoint"],
        client_id=provider.client_id,
        scope=SCOPE,
    )


@router.post(
    "",
    openapi_extra=takes(SignInRequest, example=_EXAMPLE),
    responses=answers(
        JsonMalformed, CredentialInvalid, Forbidden, NotFound, Invalid, RateLimited, ProviderDown
    ),
)
def sign_in(
    provider: TheProvider,
    caller: Request,
    request: Annotated[SignInRequest, Depends(json_body(SignInRequest))],
    response: Response,
) -> SignedInPerson:
    """Exchange an authorization code for the person's ID token; refusals count by address."""
    # The response is a credential.
    response.headers["Cache-Control"] = "no-store"
    try:
        token = provider.redeem(
            request.code, verifier=request.code_verifier, redirect_uri=request.redirect_uri
        )
        person = provider.person(token)
        # The nonce binds the token to this sign-in (OpenID Connect Core, section 3.1.3.7).
        if person.nonce != request.nonce:
            raise CredentialInvalid
    except CredentialInvalid:
        count_invalid_token(caller)
        raise
    return SignedInPerson(
        token=token,
        expires_at=person.expires_at,
        name=person.name,
        role=person.roles.get(None),
        federations={fid: role for fid, role in person.roles.items() if fid is not None},
    )


@router.delete("", status_code=204, responses=answers(AuthMissing, Forbidden, NotFound, ProviderDown))
def sign_out(person: AsPersonAnywhere, _: TheProvider, database: TheDatabase) -> None:
    """End the sign-in of this request's ID token: it is refused from now on, on every replica."""
    if person.token_digest is None or person.expires_at is None:
        raise Forbidden(
            "This is a token of the coordinator, not of the identity provider; an admin revokes it.",
            needs="id-token",
        )
    with database.write() as session:
        if sign_outs.add(session, person.token_digest, person.expires_at):
            audit_log.append(session, "person-signed-out", actor=person.id, subject=person.id)
