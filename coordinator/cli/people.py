"""Commands for tokens of people, enrolment tokens and clients."""

from __future__ import annotations

from typing import Annotated

import typer

from coordinator.cli.client import DEFAULT_URL, AsJson, Coordinator, Federation, Token, Url, fail, print_json
from coordinator.cli.output import ago, fitting_table, print_facts, print_table, traffic
from schemas.command import Yes, confirm

tokens = typer.Typer(help="Manage tokens of people: admins, operators, auditors.", no_args_is_help=True)
enrolments = typer.Typer(help="Create and list one-time enrolment tokens for clients.", no_args_is_help=True)
clients = typer.Typer(help="Manage the clients of a federation.", no_args_is_help=True)

Expires = Annotated[
    int | None,
    typer.Option(min=1, help="Lifetime of the token in seconds.", show_default="86400, a day"),
]


@tokens.command("create")
def create_token(
    role: Annotated[str, typer.Option(help="Role: admin, operator or auditor.")],
    name: Annotated[str, typer.Option(help="Name of the person who owns the token.")],
    expires_in_seconds: Annotated[
        int | None,
        typer.Option(min=1, help="Lifetime of the token in seconds.", show_default="7776000, 90 days"),
    ] = None,
    never_expires: Annotated[
        bool, typer.Option("--never-expires", help="Keep the token valid until it is revoked.")
    ] = False,
    url: Url = DEFAULT_URL,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Create the token of a person; the coordinator shows it once."""
    if never_expires and expires_in_seconds is not None:
        fail("--never-expires and --expires-in-seconds exclude each other; use one of them")
    request: dict[str, str | int | None] = {"role": role, "name": name}
    # Null means never; leaving the field out means the default of the coordinator.
    if never_expires or expires_in_seconds is not None:
        request["expires_in_seconds"] = expires_in_seconds
    created = Coordinator(url, token).post("/v1/tokens", request)
    print_json(created) if as_json else print_facts(created)


@tokens.command("list")
def list_tokens(url: Url = DEFAULT_URL, token: Token = "", as_json: AsJson = False) -> None:
    """List the tokens of people, without their secrets."""
    token_views = list(Coordinator(url, token).pages("/v1/tokens"))
    if as_json:
        print_json(token_views)
        return
    print_table(
        ["id", "role", "name", "created", "expires", "revoked"],
        [
            (t["id"], t["role"], t["name"], ago(t["created_at"]), t["expires_at"], t["revoked_at"])
            for t in token_views
        ],
    )


@tokens.command("revoke")
def revoke_token(
    token_id: Annotated[
        str, typer.Argument(metavar="TOKEN", help="Id of the token, or name of the person who owns it.")
    ],
    yes: Yes = False,
    url: Url = DEFAULT_URL,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Revoke a token, effective at once and for good.

    Asks for confirmation on a terminal; elsewhere --yes is required.
    """
    coordinator = Coordinator(url, token)
    named, token_id = token_id, coordinator.token_of(token_id)
    confirm(f"the token {_described(named, token_id)} is refused from now on, for good", yes=yes)
    coordinator.delete(f"/v1/tokens/{token_id}")
    print_json({"id": token_id, "revoked": True}) if as_json else typer.echo(f"{token_id} is revoked.")


@tokens.command("sign-out")
def sign_out(url: Url = DEFAULT_URL, token: Token = "", as_json: AsJson = False) -> None:
    """Sign out: the coordinator refuses this ID token of an identity provider from now on."""
    Coordinator(url, token).delete("/v1/sign-in")
    print_json({"signed_out": True}) if as_json else typer.echo(
        "Signed out: the token is refused from now on."
    )


@enrolments.command("create")
def create_enrolment(
    federation: Federation,
    client_name: Annotated[str, typer.Argument(help="Name of the client.")],
    organisation: Annotated[str | None, typer.Option(help="Organisation of the client.")] = None,
    cidr: Annotated[
        str | None, typer.Option(help="Network that may use the token, such as 192.0.2.0/24.")
    ] = None,
    base_model: Annotated[
        str | None, typer.Option(help="Slug of the only base model that may use the token.")
    ] = None,
    expires_in_seconds: Expires = None,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Revoke an unused token of this name, which was lost or leaked."),
    ] = False,
    url: Url = DEFAULT_URL,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Create a one-time enrolment token for one client; the coordinator shows it once."""
    request: dict[str, str | int] = {"client_name": client_name}
    if replace:
        request["replace"] = True
    if organisation is not None:
        request["organisation"] = organisation
    if cidr is not None:
        request["cidr"] = cidr
    if base_model is not None:
        request["base_model"] = base_model
    if expires_in_seconds is not None:
        request["expires_in_seconds"] = expires_in_seconds
    coordinator = Coordinator(url, token)
    created = coordinator.post(f"{coordinator.federation(federation)}/enrolment-tokens", request)
    print_json(created) if as_json else print_facts(created)


@enrolments.command("list")
def list_enrolments(
    federation: Federation, url: Url = DEFAULT_URL, token: Token = "", as_json: AsJson = False
) -> None:
    """List the enrolment tokens of a federation that may still be used, without their secrets."""
    coordinator = Coordinator(url, token)
    unused_tokens = list(coordinator.pages(f"{coordinator.federation(federation)}/enrolment-tokens"))
    if as_json:
        print_json(unused_tokens)
        return
    print_table(
        ["id", "client", "organisation", "created", "expires"],
        [
            (t["id"], t["client_name"], t["organisation"], ago(t["created_at"]), t["expires_at"])
            for t in unused_tokens
        ],
    )


@clients.command("list")
def list_clients(
    federation: Federation, url: Url = DEFAULT_URL, token: Token = "", as_json: AsJson = False
) -> None:
    """List the clients of a federation."""
    coordinator = Coordinator(url, token)
    client_views = list(coordinator.pages(f"{coordinator.federation(federation)}/clients"))
    if as_json:
        print_json(client_views)
        return
    from rich.console import Console

    shown = fitting_table(
        ["id", "name", "organisation", "base model", "identity", "state", "seen", "rounds", "bytes"],
        [
            (
                c["client_id"],
                c["name"],
                c["organisation"],
                c["profile"]["base_model"],
                c["identity"],
                c["state"],
                ago(c["last_seen_at"]),
                c["rounds"],
                traffic(c["bytes"]),
            )
            for c in client_views
        ],
        optional=("identity", "organisation", "bytes", "base model", "rounds"),
    )
    Console().print(shown)


@clients.command("revoke")
def revoke_client(
    federation: Federation,
    client: Annotated[str, typer.Argument(help="Id or name of the client.")],
    keep_packs: Annotated[
        bool,
        typer.Option("--keep-packs", help="Keep the alignment packs that the client stored."),
    ] = False,
    yes: Yes = False,
    url: Url = DEFAULT_URL,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Revoke a client, effective at once and for good; the alignment packs that it stored are deleted.

    Asks for confirmation on a terminal; elsewhere --yes is required.
    """
    query = "?keep_packs=true" if keep_packs else ""
    coordinator = Coordinator(url, token)
    path = coordinator.federation(federation)
    named, client = client, coordinator.client_of(path, client)
    packs = "kept" if keep_packs else "deleted"
    confirm(
        f"the client {_described(named, client)} is refused from now on, for good, and its packs are {packs}",
        yes=yes,
    )
    coordinator.delete(f"{path}/clients/{client}{query}")
    print_json({"client_id": client, "state": "revoked"}) if as_json else typer.echo(f"{client} is revoked.")


def _described(text: str, entry_id: str) -> str:
    """Return an id, behind the name by which it was found."""
    return entry_id if text == entry_id else f"{text} ({entry_id})"
