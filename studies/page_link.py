"""The address of a coordinator's page with a token in its fragment, which browsers do not send."""

from __future__ import annotations

import sys
from pathlib import Path

from client_agent.transport.admin_client import Operator
from schemas.private_files import FILE_MODE

TOKEN_FILE = "page-token"


def make_page_token(operator: Operator, folder: Path) -> str:
    """Create a token that may only read, store it in a folder, and return it."""
    token = str(operator.post("/v1/tokens", {"role": "auditor", "name": "page"})["token"])
    file = folder / TOKEN_FILE
    file.touch(FILE_MODE)
    file.write_text(f"{token}\n")
    return token


def page_link(url: str, token: str, file: Path | str) -> str:
    """Return what a person opens; elsewhere than on a terminal the file of the token takes its place.

    A redirected output is often a log, which others read.
    """
    if sys.stdout.isatty():
        return f"{url}/#token={token}"
    return f"{url}/ (token: {file})"
