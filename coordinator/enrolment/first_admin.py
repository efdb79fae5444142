"""Create the first admin's token in a file, if the settings name none and no person ever had a token."""

from __future__ import annotations

from pathlib import Path

from coordinator.auth import tokens
from coordinator.auth.authentication import hash_of
from coordinator.db.engine import Database
from coordinator.db.failures import explain_file
from coordinator.enrolment import store
from coordinator.errors import SettingsUnusable
from coordinator.storage import audit_log
from coordinator.storage.private_files import write_private
from schemas.messages.tokens import TokenRequest

_ACTOR = "coordinator"
_NAME = "admin-token"


def make_token(database: Database) -> Path | None:
    """Create a token for the first admin; return its file, mode 0600, or None if a person's token exists.

    The file lies beside an SQLite database, else in the working directory of the service.

    Raises:
        SettingsUnusable: the file cannot be written.
    """
    file = _token_file(database)
    with database.write() as session:
        if store.any_person_token(session):
            return None
        token = tokens.new_person_token("admin")
        row = store.add_person_token(session, TokenRequest(role="admin", name="first admin"), hash_of(token))
        audit_log.append(session, "person-token-made", actor=_ACTOR, subject=row.id, reason="first admin")
        # Before the commit: a token that is committed without its file is known to nobody, and stays the
        # only one.
        try:
            write_private(file, token + "\n")
        except OSError as error:
            raise SettingsUnusable(
                f"TESSERA_ADMIN_TOKEN is not set, and the first admin's token cannot be written. "
                f"{explain_file(error, file)}, or set the variable to the output of: openssl rand -base64 32"
            ) from error
    return file


def _token_file(database: Database) -> Path:
    path = f"{database.url.database}-{_NAME}" if database.is_sqlite else f"tessera-{_NAME}"
    return Path(path).absolute()
