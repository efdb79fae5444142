"""ID tokens that the provider signed, with claims that are not valid for this coordinator or moment."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.scene.coordinator import Served, slug, start
from tests.scene.openid_provider import CLIENT, Provider, running_provider

SECOND_CLIENT = "another"


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with running_provider() as running:
        yield running


@pytest.fixture(scope="module")
def served(fresh_database: Callable[[str], str], provider: Provider) -> Iterator[Served]:
    settings = {"oidc_issuer": provider.issuer, "oidc_client_id": CLIENT, "oidc_roles": "chiefs=admin"}
    started = start(fresh_database("sqlite"), **settings)
    yield started
    started.stop()


@pytest.fixture
def token(provider: Provider) -> Callable[..., str]:
    """Return a function that creates a token of the provider with changed claims."""

    def make(**claims: Any) -> str:
        provider.know("ada", groups=["chiefs"], **claims)
        return provider.token("ada")

    return make


def error_of(served: Served, token: str) -> str:
    refused = served.http(token).get("/v1/federations")
    return "" if refused.is_success else f"{refused.status_code} {slug(refused)}"


def timestamp_in(seconds: int) -> int:
    return int(time.time()) + seconds


ACCEPTED: dict[str, Callable[[], dict[str, Any]]] = {
    "as written": dict,
    "azp of this client": lambda: {"azp": CLIENT},
    "one audience in a list": lambda: {"aud": [CLIENT]},
    "several audiences, azp of this client": lambda: {"aud": [SECOND_CLIENT, CLIENT], "azp": CLIENT},
    "a clock ten seconds ahead": lambda: {"iat": timestamp_in(10), "nbf": timestamp_in(10)},
    "a clock ten seconds behind": lambda: {"exp": timestamp_in(-10)},
}
REFUSED: dict[str, Callable[[], dict[str, Any]]] = {
    "issued in the future": lambda: {"iat": timestamp_in(300)},
    "not valid yet": lambda: {"nbf": timestamp_in(300)},
    "expired": lambda: {"exp": timestamp_in(-300)},
    "another issuer": lambda: {"iss": "https://id.example.org"},
    "another audience": lambda: {"aud": SECOND_CLIENT},
    "another audience in a list": lambda: {"aud": [SECOND_CLIENT]},
    "azp of another client": lambda: {"azp": SECOND_CLIENT},
    "azp that is no name": lambda: {"azp": None},
    "several audiences without azp": lambda: {"aud": [CLIENT, SECOND_CLIENT]},
    "several audiences, azp of another": lambda: {"aud": [CLIENT, SECOND_CLIENT], "azp": SECOND_CLIENT},
    "times that are no numbers": lambda: {"iat": "now"},
    "an end that is no number": lambda: {"exp": "never"},
    "an end beyond all dates": lambda: {"exp": 2**60},
    "no audience": lambda: {"aud": None},
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_tokens_for_this_coordinator_and_moment_are_accepted(
    served: Served, token: Callable[..., str], case: str
) -> None:
    assert error_of(served, token(**ACCEPTED[case]())) == ""


@pytest.mark.parametrize("case", REFUSED)
def test_tokens_with_invalid_claims_are_refused(served: Served, token: Callable[..., str], case: str) -> None:
    assert error_of(served, token(**REFUSED[case]())) == "401 credential-invalid"


def test_tokens_without_the_providers_signature_are_refused(
    served: Served, token: Callable[..., str]
) -> None:
    good = token()
    header, claims = jwt.get_unverified_header(good), jwt.decode(good, options={"verify_signature": False})
    foreign = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    first, payload, signature = good.split(".")
    unsigned = jwt.encode(claims, None, "none", headers=header | {"alg": "none"})
    forged = {
        "another key under the provider's name": jwt.encode(claims, foreign, "RS256", headers=header),
        "none": unsigned,
        "none, with the old signature": f"{unsigned}{signature}",
        "the signature left out": f"{first}.{payload}.",
        "the claims of a token that expires later": ".".join(
            (first, jwt.encode(claims | {"exp": 2**31}, foreign, "RS256").split(".")[1], signature)
        ),
    }
    assert {case: error_of(served, forgery) for case, forgery in forged.items()} == dict.fromkeys(
        forged, "401 credential-invalid"
    )
    assert error_of(served, good) == ""
