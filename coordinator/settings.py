"""How one process of the coordinator is configured: `TESSERA_*` variables, or files of these names.

Files are for secrets: in the folder that TESSERA_SECRETS_DIR names, `tessera_admin_token` holds what
TESSERA_ADMIN_TOKEN would say. The environment wins.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import cache
from ipaddress import ip_address, ip_network
from typing import Annotated, Literal

from pydantic import Field, SecretStr, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict
from pydantic_settings.sources import SecretsSettingsSource
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

PREFIX = "TESSERA_"
SECRETS_DIR = f"{PREFIX}SECRETS_DIR"
_OF_AGENTS = "AGENT_"
_ADMIN_TOKEN_CHARACTERS = 20
_OF_OTHERS = {
    "SECRETS_DIR",
    "URL",
    "TOKEN",
    "INSECURE",
    "DOMAIN",
    "MAX_BODY",
    "SPOOL",
    "HTTP_PORT",
    "HTTPS_PORT",
}
"""What the operator's commands and Compose read."""


class Settings(BaseSettings):
    """Everything that differs between two coordinators; a federation's own choices are in its plan."""

    # Compose hands on an empty value where nothing is set.
    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="ignore", env_ignore_empty=True)

    database_password: Annotated[
        SecretStr | None, Field(description="joins a database_url that names a user and no password")
    ] = None
    database_url: Annotated[
        str, Field(description="sqlite:///file.db or postgresql://user:password@host/name")
    ] = "sqlite:///tessera.db"
    database_wait_seconds: Annotated[
        float, Field(ge=0, description="how long to wait for PostgreSQL when starting")
    ] = 15.0
    admin_token: Annotated[
        SecretStr | None,
        Field(description="always accepted as admin, 20 characters or more; empty = there is none"),
    ] = None
    signing_key: Annotated[
        SecretStr | None,
        Field(description="32 random bytes, base64url; SQLite makes a file of its own where it is not set"),
    ] = None
    public_names: Annotated[
        str, Field(description="the names clients call this server by, with or without port; comma-separated")
    ] = "localhost,127.0.0.1,[::1]"
    trusted_proxies: Annotated[
        str,
        Field(description="addresses and networks whose X-Forwarded-For is believed; comma-separated"),
    ] = ""
    failed_enrolments_per_minute: Annotated[
        int,
        Field(ge=1, description="how often an enrolment may fail per address, replicas together"),
    ] = 5
    failed_tokens_per_minute: Annotated[
        int,
        Field(ge=1, description="how many wrong bearer tokens per address are answered 401, then 429"),
    ] = 20
    polls_per_second: Annotated[
        float, Field(gt=0, description="how often one client may ask for its round, after ten at once")
    ] = 1.0
    upload_bytes_per_second: Annotated[
        int, Field(ge=1000, description="a body has 30 s and then this pace; lower it for slow lines")
    ] = 1_000_000
    connections: Annotated[
        int,
        Field(ge=1, description="how many connections there may be at once; others are told to come again"),
    ] = 2000
    storage_reserve_mib: Annotated[
        int, Field(ge=0, description="SQLite: no upload is taken while the disk has less than this free")
    ] = 256
    host: Annotated[str, Field(description="the address to listen on")] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535, description="the port to listen on")] = 8000
    name: Annotated[str, Field(min_length=1, max_length=100, description="what /v1/hello says")] = "Tessera"
    public_metrics: Annotated[bool, Field(description="/metrics answers without a token")] = False
    dashboard: Annotated[bool, Field(description="/ shows the dashboard, /docs the API")] = True
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Field(description="the least that is logged")
    ] = "info"
    log_format: Annotated[Literal["json", "console"], Field(description="for machines or for eyes")] = "json"
    aggregation_block_mib: Annotated[
        int,
        Field(ge=1, le=65536, description="memory while aggregating: for what is read, made and written"),
    ] = 192
    keep_rounds: Annotated[
        int | None,
        Field(ge=1, le=2**31 - 1, description="how many published rounds keep their tensors; empty: all"),
    ] = None
    lease_seconds: Annotated[
        float, Field(gt=0, description="how long an aggregating process may be silent")
    ] = 60.0
    tick_seconds: Annotated[float, Field(gt=0, description="how often rounds are looked at")] = 1.0
    retry_seconds: Annotated[
        float, Field(gt=0, description="how long clients with nothing to do are told to wait")
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
        """Look for files where the environment says, at the moment it is asked."""
        folder = os.environ.get(SECRETS_DIR)
        files = SecretsSettingsSource(settings_cls, secrets_dir=folder or None)
        return init_settings, env_settings, files

    @field_validator("database_password")
    @classmethod
    def _not_empty(cls, password: SecretStr | None) -> SecretStr | None:
        if password is not None and not password.get_secret_value():
            raise ValueError("its file is empty: write the password into it, or do not give the file")
        return password

    @field_validator("database_url")
    @classmethod
    def _with_password(cls, url: str, others: ValidationInfo) -> str:
        password: SecretStr | None = others.data.get("database_password")
        try:
            parsed = make_url(url)
        except ArgumentError:
            return url  # said where the database is opened
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

    @field_validator("public_names")
    @classmethod
    def _are_names(cls, names: str) -> str:
        for name in _listed(names):
            if not re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[\w.-]+)(:[0-9]+)?", name):
                raise ValueError(
                    f"{name} is no name: give the host of the URL that clients use, and nothing else of it"
                )
        return names

    @field_validator("trusted_proxies")
    @classmethod
    def _are_addresses(cls, proxies: str) -> str:
        for proxy in _listed(proxies):
            try:
                if proxy != "*":
                    ip_network(proxy)
            except ValueError as error:
                raise ValueError(f"{error}; addresses are like 10.0.0.5, networks like 10.0.0.0/8") from error
        return proxies

    def goes_by(self, authority: str) -> bool:
        """Say whether a Host field names this server; a public name without a port stands for every port."""
        names = {name.lower() for name in _listed(self.public_names)}
        host = authority.lower()
        return host in names or re.sub(r":[0-9]*$", "", host) in names

    def trusts(self, address: str | None) -> bool:
        """Whether an address is that of a proxy whose header fields are believed."""
        proxies = _listed(self.trusted_proxies)
        if not proxies or address is None:
            return False
        try:
            parsed = ip_address(address)
        except ValueError:
            return False
        return any(proxy == "*" or parsed in ip_network(proxy) for proxy in proxies)

    @property
    def block_bytes(self) -> int:
        """The aggregation block in bytes."""
        return self.aggregation_block_mib * 2**20


def unread(variables: Iterable[str]) -> list[str]:
    """Name those that begin like ours and that nobody reads: most likely they are misspelt."""
    names = [name.upper().removeprefix(PREFIX) for name in variables if name.upper().startswith(PREFIX)]
    known = _OF_OTHERS | {field.upper() for field in Settings.model_fields}
    return sorted(PREFIX + name for name in names if name not in known and not name.startswith(_OF_AGENTS))


@cache
def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
