"""Messages of people who sign in at an identity provider."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from schemas.messages.base import Strict, UtcTime
from schemas.messages.tokens import PersonRole

_Text = Annotated[str, Field(min_length=1, max_length=4096)]


class SignInProvider(Strict):
    """The provider where people sign in: the parameters of an authorization request with PKCE."""

    authorization_endpoint: str
    """The provider's page."""
    client_id: str
    """The coordinator's client id there."""
    scope: str
    """The scopes to ask for."""


class SignInRequest(Strict):
    """An authorization code that the provider sent back, with what its request was made of."""

    code: _Text
    """The code, which works once."""
    code_verifier: Annotated[str, Field(pattern=r"^[A-Za-z0-9._~-]{43,128}$")]
    """The secret behind the request's `code_challenge` (RFC 7636)."""
    redirect_uri: _Text
    """The `redirect_uri` of the request."""
    nonce: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{16,128}$")]
    """The `nonce` of the request, which the token must repeat."""


class SignedInPerson(Strict):
    """A person who has signed in, and the token to send from then on."""

    token: str
    """The provider's ID token, to be sent as a bearer token."""
    expires_at: UtcTime
    """The time at which it expires."""
    name: str
    """The name of the token's owner."""
    role: PersonRole | None
    """The role in all federations; null = the person has roles in some only."""
    federations: dict[str, PersonRole]
    """Further roles, by the id of the federation."""
