"""Talk to a coordinator for one command: JSON in and out; a refusal ends the command with a readable line."""

from __future__ import annotations

import inspect
import json
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from schemas.identity.plain_http import is_exposed

if TYPE_CHECKING:
    import httpx

Url = Annotated[str, typer.Option("--url", envvar="TESSERA_URL", help="Where the coordinator is.")]
Token = Annotated[
    str,
    typer.Option(
        "--token",
        envvar=["TESSERA_TOKEN", "TESSERA_ADMIN_TOKEN"],
        show_envvar=True,
        help="A person's token.",
    ),
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure",
        envvar="TESSERA_INSECURE",
        show_envvar=True,
        help="Send the token over plain http:// to another machine.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]

DEFAULT_URL = "http://127.0.0.1:8000"
_SECONDS = 30.0
_insecure: ContextVar[bool] = ContextVar("insecure", default=False)


def over_http(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--insecure` to a command that talks to a coordinator: whether a URL may be plain HTTP."""

    @wraps(command)
    def run(*, insecure: bool, **options: Any) -> None:
        _insecure.set(insecure)
        command(**options)

    signature = inspect.signature(command, eval_str=True)
    added = inspect.Parameter("insecure", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Insecure)
    run.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), added]
    )
    return run


def all_over_http(app: typer.Typer) -> typer.Typer:
    """Add `--insecure` to all commands of a group."""
    for command in app.registered_commands:
        if command.callback is not None and not hasattr(command.callback, "__wrapped__"):
            command.callback = over_http(command.callback)
    return app


class Coordinator:
    """The coordinator at a URL, as one person sees it; connections end with the command."""

    def __init__(self, url: str, token: str) -> None:
        import httpx

        if token and is_exposed(url) and not _insecure.get():
            give_up(
                f"{url} is not encrypted: everybody on the way reads your token; use https://, or --insecure "
                "(TESSERA_INSECURE=true) where the network itself is trusted"
            )
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            self._client = httpx.Client(base_url=url, headers=headers, timeout=_SECONDS)
        except (httpx.InvalidURL, ValueError):
            give_up(f"{url} is not a URL")
        weakref.finalize(self, self._client.close)

    def get(self, path: str, **query: str | int) -> Any:
        """Read something."""
        return self._call("GET", path, params=query)

    def check_readiness(self) -> None:
        """Ask whether the service and its database answer."""
        self._send("GET", "/readyz")

    def post(self, path: str, message: Mapping[str, Any] | None = None) -> Any:
        """Make or start something."""
        return self._call("POST", path, json=message)

    def delete(self, path: str) -> None:
        """End something."""
        self._call("DELETE", path)

    def put(self, path: str, body: bytes, headers: Mapping[str, str]) -> Any:
        """Store a body as it is."""
        return self._call("PUT", path, content=body, headers=dict(headers))

    def pages(self, path: str) -> Iterator[Any]:
        """Read all items of a list, page by page."""
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
        except httpx.TransportError as error:
            give_up(f"{self._client.base_url} does not answer ({type(error).__name__}): {error}")
        except httpx.InvalidURL:
            give_up(f"{path!r} cannot be part of a URL")
        if not answer.is_success:
            give_up(_explained(answer))
        return answer


def give_up(reason: str) -> NoReturn:
    """End the command with a reason."""
    typer.echo(f"tessera: {reason}", err=True)
    raise typer.Exit(1)


def print_json(value: object) -> None:
    """Print for machines."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def _explained(answer: httpx.Response) -> str:
    """Put a problem document into one line: title, detail, slug."""
    try:
        problem = answer.json()
        title, kind = problem["title"], problem["type"].rpartition(":")[2]
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{answer.status_code} {answer.reason_phrase}: this is not a Tessera coordinator's answer"
    known = {"type", "title", "status", "detail", "errors", "field"}
    facts = ", ".join(f"{name}={value}" for name, value in problem.items() if name not in known)
    faults = [f"{fault.get('field')}: {fault.get('message')}" for fault in problem.get("errors") or ()]
    detail = "; ".join(faults) if len(faults) > 1 else problem.get("detail")
    return f"{title}{': ' + detail if detail else ''} [{kind}{'; ' + facts if facts else ''}]"
