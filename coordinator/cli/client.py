"""HTTP client of the operator commands: JSON in and out; an error ends a command with one line of text."""

from __future__ import annotations

import inspect
import json
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from schemas.command import fail as fail
from schemas.identity.plain_http import connection_failure, is_exposed
from schemas.lookups import NamedEntry, NotIdentified, id_of

if TYPE_CHECKING:
    import httpx

Url = Annotated[str, typer.Option("--url", envvar="TESSERA_URL", help="URL of the coordinator.")]
Token = Annotated[
    str,
    typer.Option(
        "--token",
        envvar=["TESSERA_TOKEN", "TESSERA_ADMIN_TOKEN"],
        show_envvar=True,
        help="Bearer token of an admin, operator or auditor.",
    ),
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure",
        envvar="TESSERA_INSECURE",
        show_envvar=True,
        help="Allow sending the token over plain http:// to another machine.",
    ),
]
Federation = Annotated[str, typer.Argument(help="Id or name of the federation.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

DEFAULT_URL = "http://127.0.0.1:8000"
_SECONDS = 30.0
_INTERRUPTED = 130  # 128 + SIGINT, as in shells
_insecure: ContextVar[bool] = ContextVar("insecure", default=False)


def over_http(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--insecure` to a command that uses HTTP, and end it with a sentence if it is interrupted."""

    @wraps(command)
    def run(*, insecure: bool, **options: Any) -> None:
        _insecure.set(insecure)
        try:
            command(**options)
        except KeyboardInterrupt:
            interrupted(
                "the coordinator may have received the last request; check with a `list` or `show` command"
            )

    signature = inspect.signature(command, eval_str=True)
    added = inspect.Parameter("insecure", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Insecure)
    run.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), added]
    )
    return run


def all_over_http(app: typer.Typer) -> typer.Typer:
    for command in app.registered_commands:
        if command.callback is not None and not hasattr(command.callback, "__wrapped__"):
            command.callback = over_http(command.callback)
    return app


class Coordinator:
    """A coordinator with the permissions of one token; connections close with the command."""

    def __init__(self, url: str, token: str) -> None:
        import httpx

        from schemas.http_environment import EnvironmentUnusable, route_to

        # Before the first request: the token must not be sent at all.
        if token and is_exposed(url) and not _insecure.get():
            fail(
                f"{url} is not encrypted and would expose your token; use https://, or --insecure "
                "(TESSERA_INSECURE=true) on a trusted network"
            )
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            route = route_to(url)
            self._address = route.through(url)
            options: dict[str, Any] = route.options
            self._client = httpx.Client(base_url=url, headers=headers, timeout=_SECONDS, **options)
        except EnvironmentUnusable as error:
            fail(str(error))
        except (httpx.InvalidURL, ValueError):
            fail(f"{url} is not a URL; use one like {DEFAULT_URL}")
        # Commands end at many places, most of them by an error.
        weakref.finalize(self, self._client.close)

    def get(self, path: str, **query: str | int) -> Any:
        return self._call("GET", path, params=query)

    def check_readiness(self) -> list[str]:
        """Check that the service and its database answer; return a sentence per further part that fails."""
        return self._send("GET", "/readyz").text.splitlines()[1:]

    def post(self, path: str, message: Mapping[str, Any] | None = None) -> Any:
        return self._call("POST", path, json=message)

    def delete(self, path: str) -> None:
        self._call("DELETE", path)

    def put(self, path: str, body: bytes, headers: Mapping[str, str]) -> Any:
        return self._call("PUT", path, content=body, headers=dict(headers))

    def federation(self, text: str) -> str:
        """Return the path of the federation with this id or name; end the command if there is not one."""
        federations = "/v1/federations"
        federation_id = self._id(text, "federation", lambda: self._named(federations, "id"))
        return f"{federations}/{federation_id}"

    def client_of(self, federation_path: str, text: str) -> str:
        """Return the id of the federation's client with this id or name; of several, that not revoked."""
        return self._id(text, "client", lambda: self._named(f"{federation_path}/clients", "client_id"))

    def token_of(self, text: str) -> str:
        """Return the id of a person's token by id or the person's name; of several, that not revoked."""
        return self._id(text, "token", lambda: self._named("/v1/tokens", "id"))

    def _named(self, path: str, id_field: str) -> Iterator[NamedEntry]:
        for entry in self.pages(path):
            is_over = entry.get("state") == "revoked" or entry.get("revoked_at") is not None
            state = entry.get("state") or ("revoked" if is_over else "")
            yield NamedEntry(entry[id_field], entry["name"], state, is_over)

    def _id(self, text: str, noun: str, entries: Callable[[], Iterator[NamedEntry]]) -> str:
        try:
            return id_of(text, noun, entries, f"tessera {noun} list")
        except NotIdentified as error:
            fail(error)

    def pages(self, path: str) -> Iterator[Any]:
        """Yield all items of a list, page by page."""
        page = self.get(path)
        while True:
            yield from page["items"]
            if page["next"] is None:
                return
            page = self.get(path, after=page["next"])

    def _call(self, method: str, path: str, **options: Any) -> Any:
        answer = self._send(method, path, **options)
        return answer.json() if answer.content else None

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        import httpx

        try:
            answer = self._client.request(method, path, **options)
        except httpx.UnsupportedProtocol:
            fail(f"{self._client.base_url} is not a URL; use one like {DEFAULT_URL} (--url, TESSERA_URL)")
        except httpx.TransportError as error:
            fail(
                f"{self._address} does not answer ({connection_failure(error)}); start the "
                "coordinator with `tessera serve`, or check --url and TESSERA_URL"
            )
        except httpx.InvalidURL:
            fail(f"{path!r} cannot be part of a URL; check the ids in the command")
        # Without a token the remedy is another one than for a token that is refused.
        if answer.status_code == httpx.codes.UNAUTHORIZED and "Authorization" not in self._client.headers:
            fail(
                "no token is set: set TESSERA_TOKEN or --token; `tessera serve` prints the file of the first "
                "admin's token"
            )
        if not answer.is_success:
            fail(_summary(answer))
        return answer


def interrupted(consequence: str) -> NoReturn:
    """Print that the command was interrupted, and exit with status 130."""
    typer.echo(f"interrupted; {consequence}", err=True)
    raise typer.Exit(_INTERRUPTED) from None


def print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def _summary(answer: httpx.Response) -> str:
    """Return a problem document as one line: title, detail, slug."""
    from httpx import codes

    from schemas.problems import for_people  # pydantic, which the help of commands does not need

    try:
        problem = answer.json()
        title, kind = problem["title"], problem["type"].rpartition(":")[2]
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{answer.status_code} {answer.reason_phrase}: not a Tessera coordinator; check --url"
    title = for_people(title.removesuffix("; see `errors`"), answer.headers.get("Retry-After"))
    standard = {"type", "title", "status", "detail", "errors", "field", "known"}
    facts = ", ".join(f"{name}={value}" for name, value in problem.items() if name not in standard)
    # Without details, as for a round that is not there or a wrong path in --url, the address shows which.
    detail = problem.get("detail") or (str(answer.url) if answer.status_code == codes.NOT_FOUND else None)
    return f"{title}{': ' + detail if detail else ''} [{kind}{'; ' + facts if facts else ''}]"
