"""Settings of a coordinator process: `TESSERA_*` variables, or files of these names in
TESSERA_SECRETS_DIR. The environment takes precedence.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, SecretStr, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict
from pydantic_settings.sources import SecretsSettingsSource
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from coordinator.addresses import (
    checked_documentation,
    checked_issuer,
    checked_names,
    checked_proxies,
    checked_root_path,
    is_among_names,
    is_among_proxies,
)
from schemas.identity.group_roles import roles_of_groups
from schemas.identity.webhooks import checked_receiver, checked_secret
from schemas.trackers.options import TrackerOptions, listed_trackers

PREFIX = "TESSERA_"
SECRETS_DIR = f"{PREFIX}SECRETS_DIR"
_AGENT_PREFIX = "AGENT_"
_ADMIN_TOKEN_CHARACTERS = 20
EXTERNAL: Final[Mapping[str, str]] = {
    "SECRETS_DIR": "folder of files that may take the place of these variables: tessera_admin_token for"
    " TESSERA_ADMIN_TOKEN; the environment takes precedence",
    "URL": "operator commands: URL of the coordinator",
    "TOKEN": "operator commands: bearer token of a person",
    "INSECURE": "operator commands: true allows sending the token over plain http:// to another machine",
    "DOMAIN": "Compose: public host name of the coordinator, for which Caddy gets a certificate",
    "MAX_BODY": "Compose: largest body that Caddy passes on",
    "SPOOL": "Compose: size of the memory in which the coordinator collects bodies",
    "HTTP_PORT": "Compose: port of the machine for plain HTTP, which Caddy redirects",
    "HTTPS_PORT": "Compose: port of the machine for HTTPS",
}
"""Variables that are no settings: those of the operator commands and of Compose, and the secrets folder."""


class Settings(BaseSettings):
    """Settings of one coordinator; a federation's settings are in its plan."""

    # Compose passes an empty value for an unset variable.
    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="ignore", env_ignore_empty=True)

    database_password: Annotated[
        SecretStr | None, Field(description="password for a database URL that names only a user")
    ] = None
    database_url: Annotated[
        str, Field(description="the database: `sqlite:///file.db` or `postgresql://user:password@host/name`")
    ] = "sqlite:///tessera.db"
    database_wait_seconds: Annotated[
        float, Field(ge=0, description="seconds to wait for PostgreSQL at startup")
    ] = 15.0
    admin_token: Annotated[
        SecretStr | None,
        Field(description="token of an admin, 20 characters or more; empty: none"),
    ] = None
    signing_key: Annotated[
        SecretStr | None,
        Field(description="32 random bytes, base64url; generated in a file beside SQLite if unset"),
    ] = None
    public_names: Annotated[
        str,
        AfterValidator(checked_names),
        Field(description="host names in the URLs that clients use, with or without port; comma-separated"),
    ] = "localhost,127.0.0.1,[::1]"
    root_path: Annotated[
        str,
        AfterValidator(checked_root_path),
        Field(description="path before the coordinator's own paths in the URLs that clients use: `/tessera`"),
    ] = ""
    trusted_proxies: Annotated[
        str,
        AfterValidator(checked_proxies),
        Field(description="addresses and networks whose X-Forwarded-For is trusted; comma-separated"),
    ] = ""
    failed_enrolments_per_minute: Annotated[
        int,
        Field(ge=1, description="failed enrolments per address before 429, across replicas"),
    ] = 5
    failed_tokens_per_minute: Annotated[
        int,
        Field(ge=1, description="invalid bearer tokens per address before 429, across replicas"),
    ] = 20
    polls_per_second: Annotated[
        float,
        Field(
            gt=0,
            description="polls per second of one client, and reads of `/v1/me`, after a burst of ten each",
        ),
    ] = 1.0
    upload_bytes_per_second: Annotated[
        int,
        Field(ge=1000, description="slowest accepted rate of a body after 30 s; lower it for slow networks"),
    ] = 1_000_000
    connections: Annotated[
        int,
        Field(ge=1, description="concurrent connections; further ones get 503"),
    ] = 2000
    storage_reserve_mib: Annotated[
        int, Field(ge=0, description="free disk space below which uploads are refused; SQLite only")
    ] = 256
    host: Annotated[str, Field(description="address to listen on")] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535, description="port to listen on")] = 8000
    name: Annotated[
        str, Field(min_length=1, max_length=100, description="name of the coordinator in /v1/hello")
    ] = "Tessera"
    oidc_issuer: Annotated[
        str,
        AfterValidator(checked_issuer),
        Field(
            description="issuer of an OpenID Connect provider where people sign in: `https://id.example.org`"
        ),
    ] = ""
    oidc_client_id: Annotated[str, Field(description="this coordinator's client id at the provider")] = ""
    oidc_client_secret: Annotated[
        SecretStr | None,
        Field(description="client secret at the provider; empty for a public client with PKCE"),
    ] = None
    oidc_claim: Annotated[
        str,
        Field(
            description="claim with a person's groups; a dot selects a key of an object: `realm_access.roles`"
        ),
    ] = "groups"
    oidc_roles: Annotated[
        str,
        Field(description="roles of groups: `admins=admin, ward=operator@FEDERATION`; comma-separated"),
    ] = ""
    traces: Annotated[
        bool, Field(description="export traces, configured by OTEL_* variables; needs the extra `otel`")
    ] = False
    public_metrics: Annotated[bool, Field(description="serve /metrics without a token")] = False
    dashboard: Annotated[bool, Field(description="serve the dashboard on / and the API's page on /docs")] = (
        True
    )
    documentation_url: Annotated[
        str,
        AfterValidator(checked_documentation),
        Field(
            description="your copy of the documentation, to which the dashboard links: `https://docs.example.org`"
        ),
    ] = ""
    report_to: Annotated[
        str, Field(description="trackers that record rounds: `tensorboard,mlflow,wandb,trackio`")
    ] = ""
    tracker_folder: Annotated[str, Field(description="folder of the trackers' files")] = "trackers"
    mlflow_uri: Annotated[str, Field(description="MLflow server or database; empty: a SQLite file")] = ""
    wandb_url: Annotated[str, Field(description="W&B server; empty: files in the folder")] = ""
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Field(description="lowest level that is logged")
    ] = "info"
    log_format: Annotated[
        Literal["json", "console"],
        Field(description="format of the log: `json` for machines, `console` for people"),
    ] = "json"
    aggregation_block_mib: Annotated[
        int,
        Field(ge=1, le=65536, description="memory of an aggregation in MiB, for reading, mixing and writing"),
    ] = 192
    keep_rounds: Annotated[
        int | None,
        Field(
            ge=1,
            le=2**31 - 1,
            description="number of newest published rounds that keep their tensors; empty: all",
        ),
    ] = None
    webhook_url: Annotated[
        str,
        AfterValidator(checked_receiver),
        Field(description="URL that receives messages, as about stuck rounds: `https://example.org/hook`"),
    ] = ""
    webhook_secret: Annotated[
        SecretStr | None,
        AfterValidator(checked_secret),
        Field(description="`whsec_` and 24 to 64 bytes in base64, for receivers that verify an HMAC"),
    ] = None
    payload_store: Annotated[
        str, Field(description="object store for large tensors: `s3://BUCKET/PREFIX`; empty: none")
    ] = ""
    lease_seconds: Annotated[
        float, Field(gt=0, description="lease of an aggregation, after which another process takes over")
    ] = 60.0
    stuck_seconds: Annotated[
        float,
        Field(gt=0, description="seconds in a state, or after the deadline, after which a round is stuck"),
    ] = 3600.0
    tick_seconds: Annotated[float, Field(gt=0, description="seconds between two checks for due rounds")] = 1.0
    retry_seconds: Annotated[
        float, Field(gt=0, description="mean Retry-After, in seconds, of clients without a round")
    ] = 5.0

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read secret files from the folder that the environment names at this moment."""
        folder = os.environ.get(SECRETS_DIR)
        files = SecretsSettingsSource(settings_cls, secrets_dir=folder or None)
        return init_settings, env_settings, files

    @field_validator("database_password")
    @classmethod
    def _not_empty(cls, password: SecretStr | None) -> SecretStr | None:
        if password is not None and not password.get_secret_value():
            raise ValueError("the file is empty; write the password into it or remove it")
        return password

    @field_validator("database_url")
    @classmethod
    def _with_password(cls, url: str, info: ValidationInfo) -> str:
        password: SecretStr | None = info.data.get("database_password")
        try:
            parsed = make_url(url)
        except (ArgumentError, ValueError):
            return url  # reported when the database is opened
        # The password setting completes a URL; it never replaces one in it.
        if password is None or parsed.username is None or parsed.password is not None:
            return url
        return parsed.set(password=password.get_secret_value()).render_as_string(hide_password=False)

    @field_validator("admin_token", "signing_key")
    @classmethod
    def _empty_is_unset(cls, token: SecretStr | None) -> SecretStr | None:
        return token if token is not None and token.get_secret_value().strip() else None

    @field_validator("admin_token")
    @classmethod
    def _is_long(cls, token: SecretStr | None) -> SecretStr | None:
        if token is not None and len(token.get_secret_value().strip()) < _ADMIN_TOKEN_CHARACTERS:
            raise ValueError(
                f"shorter than {_ADMIN_TOKEN_CHARACTERS} characters, so it may be guessed; "
                "set it to the output of: openssl rand -base64 32"
            )
        return token

    @field_validator("oidc_roles")
    @classmethod
    def _are_roles(cls, text: str) -> str:
        roles_of_groups(text)
        return text

    @property
    def trackers(self) -> TrackerOptions:
        return listed_trackers(self.report_to, self.tracker_folder, self.mlflow_uri, self.wandb_url)

    def goes_by(self, authority: str) -> bool:
        """Whether a Host field names this server."""
        return is_among_names(authority, self.public_names)

    def trusts(self, address: str | None) -> bool:
        """Whether an address belongs to a trusted proxy."""
        return is_among_proxies(address, self.trusted_proxies)

    @property
    def block_bytes(self) -> int:
        return self.aggregation_block_mib * 2**20


def suggestions(names: Iterable[str]) -> dict[str, str | None]:
    """Return the nearest variable for each unread one; None = none is near."""
    variables = [PREFIX + name for name in (*EXTERNAL, *(field.upper() for field in Settings.model_fields))]
    return {name: next(iter(get_close_matches(name, variables, n=1, cutoff=0.8)), None) for name in names}


def variable_names() -> list[str]:
    """Return the names of variables in the environment, and of files in the folder of secrets."""
    folder = Path(os.environ.get(SECRETS_DIR) or "/nonexistent")
    return [*os.environ, *(file.name for file in folder.glob("*") if file.is_file())]


def unread(variables: Iterable[str]) -> list[str]:
    """Return the `TESSERA_*` variables that no setting reads, most likely misspelt."""
    names = [name.upper().removeprefix(PREFIX) for name in variables if name.upper().startswith(PREFIX)]
    read = {*EXTERNAL, *(field.upper() for field in Settings.model_fields)}
    return sorted(PREFIX + name for name in names if name not in read and not name.startswith(_AGENT_PREFIX))
