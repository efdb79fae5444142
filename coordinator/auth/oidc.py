"""People who sign in at an identity provider (OpenID Connect Core 1.0): its ID tokens as bearer tokens.

A token counts if the provider signed it for this coordinator, at this time, and a group of the person has a
role. Needs the extra `oidc`.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import inf
from typing import Any, Final
from urllib.parse import quote

from coordinator.auth import sign_outs
from coordinator.auth.provider_requests import ProviderDown, ProviderRequests, document_of
from coordinator.errors import CredentialInvalid, Forbidden, SettingsUnusable
from coordinator.observability.logs import logger
from coordinator.settings import Settings
from schemas.identity.group_roles import RANKS, roles_of_groups
from schemas.messages.tokens import PersonRole

log = logger(__name__)

PREFIX: Final = "oidc_"
SCOPE: Final = "openid profile email"
# Signatures with a private key of the provider. No HS256: its key verifies and signs.
_ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA")
_BASIC: Final = "client_secret_basic"
_LEEWAY_SECONDS: Final = 30
# Keys are fetched anew after so long: providers replace and withdraw them.
_KEYS_SECONDS: Final = 600.0
# An unknown key is looked for this often at most: anybody can name one.
_RETRY_SECONDS: Final = 30.0
# Codes that are exchanged at once: anybody can send one, and each holds a thread until the answer.
_EXCHANGES: Final = 4
# Threads that fetch metadata or keys, or wait for that: anybody can send a token of an unknown key.
_WAITING: Final = 8
_NAME_CHARACTERS: Final = 100
_ISSUER_CHARACTERS: Final = 300


@dataclass(frozen=True, slots=True)
class ProviderIdentity:
    """A person of an identity provider, until the token expires.

    Attributes:
        id: derived from issuer and subject, so that it is the same for every token of the person.
        roles: the role by federation; the role under None holds in all federations.
        token_digest: the digest by which the token is recognised after the person has signed out.
    """

    id: str
    name: str
    roles: Mapping[str | None, PersonRole]
    expires_at: datetime
    token_digest: str
    nonce: str | None


class IssuerDiffers(ProviderDown):
    """The provider has another issuer than the settings; no token of it would be accepted."""

    title = "The identity provider has another issuer than the coordinator's settings"

    def __init__(self, expected: str, actual: str) -> None:
        shown = "".join(filter(str.isprintable, actual))[:_ISSUER_CHARACTERS]
        super().__init__(
            f"the identity provider at {expected} names itself {shown}; set TESSERA_OIDC_ISSUER={shown}"
        )


@dataclass
class IdentityProvider:
    """One provider; its metadata and keys are fetched when a token needs them, and cached."""

    issuer: str
    client_id: str
    client_secret: str | None
    claim: str
    groups: Mapping[str, Mapping[str | None, PersonRole]]
    clock: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _metadata: dict[str, Any] = field(default_factory=dict)
    _keys: dict[str, Any] = field(default_factory=dict)
    _fetched_at: float = -inf
    _requests: ProviderRequests = field(init=False)
    _waiting: threading.BoundedSemaphore = field(default_factory=lambda: threading.BoundedSemaphore(_WAITING))
    _exchanges: threading.BoundedSemaphore = field(
        default_factory=lambda: threading.BoundedSemaphore(_EXCHANGES)
    )

    def __post_init__(self) -> None:
        self._requests = ProviderRequests(lambda: self.clock())

    def person(self, token: str) -> ProviderIdentity:
        """Return the person of an ID token.

        Raises:
            CredentialInvalid: the token is not of this issuer, for this client, at this time, or not signed.
            Forbidden: no group of the person has a role.
            ProviderDown: its keys cannot be fetched.
        """
        import jwt

        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                self._key(jwt.get_unverified_header(token)),
                algorithms=_ALGORITHMS,
                audience=self.client_id,
                issuer=self.issuer,
                leeway=_LEEWAY_SECONDS,
                options={"require": ["iss", "aud", "exp", "iat", "sub"]},
            )
            expires_at = datetime.fromtimestamp(claims["exp"], UTC)
        except (jwt.PyJWTError, OverflowError, ValueError, OSError) as error:
            log.info("id-token-refused", reason=f"{type(error).__name__}: {error}")
            raise CredentialInvalid from error
        # Section 3.1.3.7: a token for several audiences names in azp the client that it was issued to.
        is_shared = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
        if claims.get("azp", None if is_shared else self.client_id) != self.client_id:
            log.info("id-token-refused", reason="azp names another client, or none of several audiences")
            raise CredentialInvalid
        roles = self._roles(claims)
        if not roles:
            raise Forbidden("No group of yours has a role here; ask the operator.", needs="auditor")
        # Subjects are unique within their issuer only.
        digest = hashlib.sha256(f"{self.issuer}\n{claims['sub']}".encode()).hexdigest()
        shown = str(claims.get("preferred_username") or claims.get("email") or claims["sub"])
        return ProviderIdentity(
            id=PREFIX + digest[:24],
            # The provider may let people choose this text, which the audit log and pages show.
            name="".join(filter(str.isprintable, shown))[:_NAME_CHARACTERS],
            roles=roles,
            expires_at=expires_at,
            token_digest=sign_outs.digest_of(token),
            nonce=claims.get("nonce"),
        )

    def redeem(self, code: str, *, verifier: str, redirect_uri: str) -> str:
        """Exchange an authorization code for an ID token (RFC 6749 section 4.1.3, with PKCE, RFC 7636).

        Raises:
            CredentialInvalid: the provider refuses the code, or answers without an ID token.
            ProviderDown: it does not answer, or too many codes are being exchanged.
        """
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "code_verifier": verifier,
            "redirect_uri": redirect_uri,
            "client_id": self.client_id,
        }
        metadata, options = self.metadata(), {}
        if self.client_secret is not None:
            # HTTP Basic is what a provider supports that names no method (Discovery, section 3).
            if _BASIC in metadata.get("token_endpoint_auth_methods_supported", [_BASIC]):
                options["auth"] = (quote(self.client_id, safe=""), quote(self.client_secret, safe=""))
            else:
                form["client_secret"] = self.client_secret
        # Refused at once: requests that wait here would occupy all threads.
        if not self._exchanges.acquire(blocking=False):
            raise ProviderDown
        try:
            answer = self._requests.send("POST", metadata["token_endpoint"], data=form, **options)
        finally:
            self._exchanges.release()
        token = document_of(answer).get("id_token") if answer.is_success else None
        if not isinstance(token, str):
            log.info("authorization-code-refused", status=answer.status)
            raise CredentialInvalid
        return token

    def metadata(self) -> dict[str, Any]:
        """Return the provider's metadata (OpenID Connect Discovery 1.0).

        Raises:
            ProviderDown: it does not answer, or without endpoints.
            IssuerDiffers: its metadata are those of another issuer.
        """
        if not self._metadata:
            with self._fetching():
                # Another thread may have fetched it while this one waited.
                if not self._metadata:
                    self._metadata = self._fetched_metadata()
        return self._metadata

    def _key(self, header: Mapping[str, Any]) -> Any:
        """Return the key that a token names; an unknown one is looked for at most twice a minute."""
        import jwt

        uri, kid = self.metadata()["jwks_uri"], str(header.get("kid", ""))
        # While one thread fetches keys anew, requests with a known key do not queue behind it.
        if self._are_due(kid) and not self._is_usable_meanwhile(kid):
            with self._fetching():
                if self._are_due(kid):
                    self._keys, self._fetched_at = self._fetched_keys(uri), self.clock()
        keys = self._keys
        if not kid and len(keys) == 1:  # section 10.1: the name may be left out then
            return next(iter(keys.values()))
        if kid not in keys:
            raise jwt.InvalidKeyError(f"the provider has no key {kid!r}")
        return keys[kid]

    def _are_due(self, kid: str) -> bool:
        age = self.clock() - self._fetched_at
        return age > _KEYS_SECONDS or (kid not in self._keys and age > _RETRY_SECONDS)

    def _is_usable_meanwhile(self, kid: str) -> bool:
        """Whether a key is known, only just due, and another thread is fetching it anew."""
        age = self.clock() - self._fetched_at
        return kid in self._keys and age <= _KEYS_SECONDS + _RETRY_SECONDS and self._lock.locked()

    @contextmanager
    def _fetching(self) -> Iterator[None]:
        """Fetch in one thread, for which a few may wait.

        Raises:
            ProviderDown: too many threads wait already.
        """
        # Without a bound all threads of the server could wait here, and no other request would be served.
        if not self._waiting.acquire(blocking=False):
            raise ProviderDown
        try:
            with self._lock:
                yield
        finally:
            self._waiting.release()

    def _fetched_metadata(self) -> dict[str, Any]:
        url = f"{self.issuer.rstrip('/')}/.well-known/openid-configuration"
        document = self._requests.get(url)
        needed = ("authorization_endpoint", "token_endpoint", "jwks_uri")
        if not all(isinstance(document.get(name), str) for name in ("issuer", *needed)):
            self._requests.note_down(url, "metadata without issuer or endpoints")
            raise ProviderDown
        if document["issuer"] != self.issuer:
            differs = IssuerDiffers(self.issuer, document["issuer"])
            self._requests.note_down(url, str(differs))
            raise differs
        return document

    def _fetched_keys(self, uri: str) -> dict[str, Any]:
        import jwt

        document = self._requests.get(uri)
        try:
            return {str(key.key_id or ""): key for key in jwt.PyJWKSet.from_dict(document).keys}
        except (jwt.PyJWTError, AttributeError, TypeError, ValueError) as error:  # a list of numbers, say
            self._requests.note_down(uri, f"unusable keys: {error}")
            raise ProviderDown from error

    def _roles(self, claims: Mapping[str, Any]) -> dict[str | None, PersonRole]:
        """Return the highest role by federation that the groups of a person have."""
        value: Any = claims
        for part in self.claim.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        names = [value] if isinstance(value, str) else value if isinstance(value, list) else []
        roles: dict[str | None, PersonRole] = {}
        for name in filter(lambda entry: isinstance(entry, str), names):
            for federation, role in self.groups.get(name, {}).items():
                if federation not in roles or RANKS[role] > RANKS[roles[federation]]:
                    roles[federation] = role
        return roles


def provider_of(settings: Settings) -> IdentityProvider | None:
    """Return the provider that the settings name; None = there is none.

    Raises:
        SettingsUnusable: a setting beside the issuer is missing, or the extra is not installed.
    """
    if not settings.oidc_issuer:
        return None
    if not settings.oidc_client_id or not settings.oidc_roles:
        raise SettingsUnusable(
            "TESSERA_OIDC_ISSUER needs TESSERA_OIDC_CLIENT_ID, and TESSERA_OIDC_ROLES such as ops=operator"
        )
    try:
        import jwt  # noqa: F401
    except ImportError as error:
        raise SettingsUnusable(
            "TESSERA_OIDC_ISSUER needs the extra: pip install '.[coordinator,oidc]'"
        ) from error
    secret = settings.oidc_client_secret
    return IdentityProvider(
        issuer=settings.oidc_issuer,
        client_id=settings.oidc_client_id,
        client_secret=secret.get_secret_value() if secret is not None else None,
        claim=settings.oidc_claim,
        groups=roles_of_groups(settings.oidc_roles),
    )


def require_issuer(settings: Settings) -> None:
    """Raise if the provider of the settings has another issuer; it need not answer.

    Raises:
        SettingsUnusable: see `provider_of`, or the provider names another issuer.
    """
    provider = provider_of(settings)
    if provider is None:
        return
    try:
        provider.metadata()
    except IssuerDiffers as differs:
        raise SettingsUnusable(str(differs)) from differs
    except ProviderDown:
        pass  # logged with its reason; people can sign in once it answers
