"""Who may do what: tokens of people, enrolment tokens, clients."""

from __future__ import annotations

from typing import Annotated

import typer

from coordinator.cli.client import DEFAULT_URL, AsJson, Coordinator, Token, Url, give_up, print_json
from coordinator.cli.output import ago, print_facts, print_table, traffic

tokens = typer.Typer(help="Tokens of people: admins, operators, auditors.", no_args_is_help=True)
enrolments = typer.Typer(help="One-time tokens for clients.", no_args_is_help=True)
clients = typer.Typer(help="The clients of a federation.", no_args_is_help=True)

Federation = Annotated[str, typer.Argument(help="The federation's id.")]
Expires = Annotated[int | None, typer.Option(min=1, help="How long the token lives.")]


@tokens.command("create")
def create_token(
    role: Annotated[str, typer.Option(help="admin, operator or auditor.")],
    name: Annotated[str, typer.Option(help="Whose it is.")],
    expires_in_seconds: Annotated[
        int | None, typer.Option(min=1, help="How long the token lives; 90 days without it.")
    ] = None,
    never_expires: Annotated[bool, typer.Option("--never-expires", help="Until it is revoked.")] = False,
    url: Url = DEFAULT_URL,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Make a token; it is shown once."""
    if never_expires and expires_in_seconds is not None:
        give_up("--never-expires and --expires-in-seconds exclude each other")
    request: dict[str, str | int | None] = {"role": role, "name": name}
    if never_expires or expires_in_seconds is not None:
        request["expires_in_seconds"] = expires_in_seconds
    made = Coordinator(url, token).post("/v1/tokens", request)
    print_json(made) if as_json else print_facts(made)


@tokens.command("list")
def list_tokens(url: Url = DEFAULT_URL, token: Token = "", as_json: AsJson = False) -> None:
    """List all tokens, without the tokens."""
    found = list(Coordinator(url, token).pages("/v1/tokens"))
    if as_json:
        print_json(found)
        return
    print_table(
        ["id", "role", "name", "created", "expires", "revoked"],
        [
            (t["id"], t["role"], t["name"], ago(t["created_at"]), t["expires_at"], t["revoked_at"])
            for t in found
        ],
    )


@tokens.command("revoke")
def revoke_token(
    token_id: Annotated[str, typer.Argument(help="The token's id.")],
    url: Url = DEFAULT_URL,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """End a token, effective at once."""
    Coordinator(url, token).delete(f"/v1/tokens/{token_id}")
    print_json({"id": token_id, "revoked": True}) if as_json else typer.echo(f"{token_id} is revoked.")


@enrolments.command("create")
def create_enrolment(
    federation: Federation,
    client_name: Annotated[str, typer.Argument(help="The name that the client will have.")],
    organisation: Annotated[str | None, typer.Option(help="Whose client it is.")] = None,
    cidr: Annotated[str | None, typer.Option(help="The network it may be used from: 192.0.2.0/24.")] = None,
    base_model: Annotated[
        str | None, typer.Option(help="The slug of the only base model that it may be used with.")
    ] = None,
    expires_in_seconds: Expires = None,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="End an unused token of this name: it is lost, or others saw it."),
    ] = False,
    url: Url = DEFAULT_URL,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Make a one-time token for one client; it is shown once."""
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
    made = Coordinator(url, token).post(f"/v1/federations/{federation}/enrolment-tokens", request)
    print_json(made) if as_json else print_facts(made)


@clients.command("list")
def list_clients(
    federation: Federation, url: Url = DEFAULT_URL, token: Token = "", as_json: AsJson = False
) -> None:
    """List a federation's clients."""
    found = list(Coordinator(url, token).pages(f"/v1/federations/{federation}/clients"))
    if as_json:
        print_json(found)
        return
    print_table(
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
            for c in found
        ],
    )


@clients.command("revoke")
def revoke_client(
    federation: Federation,
    client: Annotated[str, typer.Argument(help="The client's id.")],
    keep_packs: Annotated[
        bool,
        typer.Option("--keep-packs", help="Vouch for the alignment packs that it stored: they are kept."),
    ] = False,
    url: Url = DEFAULT_URL,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Shut a client out, effective at once; the alignment packs that it stored are deleted."""
    query = "?keep_packs=true" if keep_packs else ""
    Coordinator(url, token).delete(f"/v1/federations/{federation}/clients/{client}{query}")
    print_json({"client_id": client, "state": "revoked"}) if as_json else typer.echo(f"{client} is revoked.")
