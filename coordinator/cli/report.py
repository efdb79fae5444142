"""Fetch the signed report of a federation, write it as JSON or as a page, and verify either offline."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from coordinator.cli.client import (
    DEFAULT_URL,
    Coordinator,
    Federation,
    Token,
    Url,
    fail,
    over_http,
    print_json,
)
from coordinator.cli.report_page import DATA_BEGIN, DATA_END, page
from schemas.identity.documents import is_signed
from schemas.identity.keys import KeyUnusable, public_key, thumbprint
from schemas.user_files import FileUnusable, read_text, require_writable_file, write_text
from schemas.wire.digests import digest_of
from schemas.wire.strict_json import MalformedJson, loads

app = typer.Typer(no_args_is_help=True, help="Fetch and verify signed reports of a federation, for auditors.")

Document = dict[str, Any]
_THUMBPRINT = re.compile(r"[A-Za-z0-9_-]{43}")


@app.command("create")
@over_http
def create_report(
    federation: Federation,
    html_file: Annotated[
        Path | None, typer.Option("--html", help="File for the report as an HTML page.", show_default=False)
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="File for the report as JSON.", show_default=False)
    ] = None,
    url: Url = DEFAULT_URL,
    token: Token = "",
) -> None:
    """Fetch the signed report of a federation: plan, members, rounds, privacy, audit entries.

    Prints the report as JSON unless --html or --json names a file.
    """
    # Checked before the report is fetched.
    for target, name in ((json_file, "--json"), (html_file, "--html")):
        if target is not None:
            try:
                require_writable_file(target, name)
            except FileUnusable as error:
                fail(str(error))
    coordinator = Coordinator(url, token)
    document: Document = coordinator.get(f"{coordinator.federation(federation)}/report")
    key = str(coordinator.get("/v1/hello")["signing_key"])
    fault = fault_of(document, key)
    if fault is not None:
        fail(f"{fault}; check --url, and whether a proxy changes answers")
    for file, text, option in ((json_file, _json(document), "--json"), (html_file, page(document), "--html")):
        if file is not None:
            _write(file, text, option)
    if html_file is None and json_file is None:
        print_json(document)
        return
    typer.echo(f"Signed by the coordinator; key thumbprint: {thumbprint(key)}.")


@app.command("verify")
def verify_report(
    file: Annotated[Path, typer.Argument(help="The report, JSON or HTML.")],
    key: Annotated[
        str,
        typer.Option("--coordinator-key", help="The coordinator's public key, or its thumbprint."),
    ],
) -> None:
    """Verify a report offline; exit 1 if it was changed, or is not signed with this key.

    Take the key from another source than the report: enrolment tokens contain its thumbprint, and `/v1/hello`
    returns the key.
    """
    try:
        text = read_text(file)
    except (OSError, ValueError) as error:
        fail(f"{file} cannot be read ({error}); name a report that `tessera report create` wrote")
    is_page = text.lstrip().startswith("<")
    document = _parse(_data_of(text) if is_page else text, file)
    fault = fault_of(document, key)
    # The data in the page are signed, and the text around them is not.
    if fault is None and is_page and page(document) != text:
        fault = (
            "the page differs from the signed data in it: it was changed, or another version of tessera "
            "wrote it; verify the JSON file instead"
        )
    if fault is not None:
        fail(f"{file}: {fault}")
    typer.echo(
        f"{file}: {document['name']} ({document['federation']}), issued at {document['issued_at']} by "
        f"{document['coordinator']}; unchanged. Key thumbprint: {thumbprint(document['signing_key'])}."
    )


def fault_of(document: Document, key: str) -> str | None:
    """Return why a report must not be believed; `key` is a public key or its thumbprint, None = no fault."""
    from schemas.messages.reports import Report

    try:
        Report.model_validate_json(json.dumps(document))
        signer = public_key(document["signing_key"])
    except (ValueError, KeyUnusable):
        return "not a report of this format, or the file was changed; fetch the report again"
    if not _THUMBPRINT.fullmatch(key):
        return (
            "--coordinator-key: not a public key or thumbprint of 43 characters; `/v1/hello` returns the key"
        )
    if key not in (document["signing_key"], thumbprint(document["signing_key"])):
        return f"signed with another key, of thumbprint {thumbprint(document['signing_key'])}; check the key"
    if not is_signed("tessera-report-v1", document, document["signature"], signer):
        return (
            "the signature does not match: the report was changed after it was signed; fetch the report again"
        )
    if digest_of(document["plan"].encode()) != document["plan_digest"]:
        return "the plan does not have the digest that the report names; fetch the report again"
    return None


def _json(document: Document) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _write(file: Path, text: str, option: str) -> None:
    try:
        write_text(file, text, option)
    except FileUnusable as error:
        fail(str(error))
    typer.echo(f"Wrote {file}.")


def _data_of(text: str) -> str:
    """Return the signed data in a page; "" if there is none."""
    return text.partition(DATA_BEGIN)[2].partition(DATA_END)[0]


def _parse(text: str, file: Path) -> Document:
    try:
        document = loads(text.encode())
    except MalformedJson:
        document = None
    if not isinstance(document, dict):
        fail(f"{file}: not a report of this format, or the file was changed; fetch the report again")
    return document
