"""The page of errors: problem types of the coordinator, and the errors and exit statuses of the agent."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping

from client_agent.rounds.failure_policy import CONTENT_REFUSED, FATAL, TOO_LATE, TRANSIENT
from coordinator import errors as coordinator_errors
from coordinator.auth import provider_requests
from coordinator.enrolment import names
from coordinator.errors import Refusal
from coordinator.secure_sum import errors as sum_errors
from docs.generate.markdown import block, code, page_of, prose, sentence, table
from docs.generate.remedies import REMEDIES
from docs.generate.sources import subclasses
from schemas.problems import MEDIA_TYPE, PREFIX
from schemas.wire import errors as wire_errors
from schemas.wire.errors import BodyRefused

Problem = type[Refusal] | type[BodyRefused]

_INTRODUCTION = f"""\
The coordinator answers a refused request with a problem document ([RFC
9457](https://www.rfc-editor.org/rfc/rfc9457)) of the media type `{MEDIA_TYPE}`. Programs read `type`, whose
last part is the slug below, and further members; people read `title` and `detail`. New slugs may be added:
handle an unknown slug by its status."""

_EXAMPLE = f"""\
HTTP/1.1 409 Conflict
Content-Type: {MEDIA_TYPE}

{{
  "type": "{PREFIX}round-closed",
  "title": "The round is closed; continue with the next round",
  "status": 409
}}"""

_DAEMON = """\
`tessera agent run` reacts by itself: it **retries** until the request succeeds, continues with the **next
round**, or **stops** with exit status 1 because a person has to act. Your own client should do the same."""

_AGENT = """\
Commands of `tessera agent` print an error in one line that begins with `error:` and says what to do next.
The message depends on the facts; the classes below are what Python code can catch, all subclasses of
`AgentError`. `tessera agent run` retries after some of them for as long as it runs."""

_EXITS = (
    ("0", "The command succeeded, or `tessera agent run` was stopped and resumes at its next start."),
    (
        "1",
        "An error, a check that failed, or a comparison with missing runs. The message says what to do next.",
    ),
    ("2", "An unknown command, or a missing or wrong option."),
    ("75", "`tessera agent sync` or `work` has no work, or was stopped; run the same command again later."),
    ("130", "The command was interrupted. The message says whether its next start resumes."),
)
_REACTIONS = {
    "CoordinatorRefused": "[by slug](#coordinator)",
    "FederationOver": "ends, 0",
    "Stopped": "ends, 0",
}


def page() -> str:
    return page_of(
        "Errors",
        "the error classes of both sides and docs/generate/remedies.py",
        _INTRODUCTION,
        block("http", _EXAMPLE),
        "## Coordinator",
        _DAEMON,
        table(("slug", "status", "agent"), _overview()),
        *(_section(slug, kinds) for slug, kinds in problems().items()),
        "## Agent",
        _AGENT,
        table(("exit status", "when"), _EXITS),
        table(("error", "meaning", "agent run, exit status"), _agent_errors()),
    )


def problems() -> dict[str, list[Problem]]:
    """Return the problem types by slug, in the order of the alphabet."""
    by_slug: dict[str, list[Problem]] = {}
    for kind in _classes():
        by_slug.setdefault(kind.slug, []).append(kind)
    return dict(sorted(by_slug.items()))


def _classes() -> Iterator[Problem]:
    for module in (coordinator_errors, provider_requests, names, sum_errors, wire_errors):
        for kind in vars(module).values():
            if inspect.isclass(kind) and issubclass(kind, Refusal | BodyRefused) and hasattr(kind, "slug"):
                yield kind


def _overview() -> Iterable[tuple[str, str, str]]:
    for slug, kinds in problems().items():
        yield f"[`{slug}`](#{slug})", str(kinds[0].status), _reaction(slug, kinds[0].status)


def _reaction(slug: str, status: int) -> str:
    if slug in TOO_LATE:
        return "next round; stops outside a round" if slug in FATAL else "next round"
    if slug in FATAL:
        return "stops"
    return "next round if an update is refused, else retries" if status in CONTENT_REFUSED else "retries"


def _section(slug: str, kinds: list[Problem]) -> str:
    titles = dict.fromkeys(sentence(kind.title) for kind in kinds)
    fields = _fields(kinds[0])
    parts = (
        f"### {slug}",
        f"Status {kinds[0].status}{f', with {fields}' if fields else ''}. {' '.join(titles)}",
        f"**What to do:** {REMEDIES[slug]}",
    )
    return "\n\n".join(parts)


def _fields(kind: Problem) -> str:
    headers: Mapping[str, str] = getattr(kind, "headers", {})
    return ", ".join(code(f"{name}: {value}") for name, value in headers.items())


def _agent_errors() -> Iterable[tuple[str, str, str]]:
    transient = {kind.__name__ for kind in TRANSIENT}
    for error in subclasses("client_agent", "AgentError"):
        meaning = prose(error.docstring).partition("\n\n")[0]
        reaction = _REACTIONS.get(error.name, "retries" if error.name in transient else "stops, 1")
        yield code(error.name), sentence(meaning), reaction
