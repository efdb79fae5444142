"""The report of a federation as one HTML page that loads no other file and can be printed.

Rendering is a function of the report alone: a verifier renders the data in a page again and compares.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from coordinator.cli.output import size
from schemas.identity.keys import thumbprint

DATA_BEGIN = '<script type="application/json" id="report">'
DATA_END = "</script>"

_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1c2733;
  max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin: 0 0 .2rem; }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; border-bottom: 2px solid #d5dde5; padding-bottom: .2rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 .3rem; }
table { border-collapse: collapse; width: 100%; font-size: .87rem; }
th, td { text-align: left; vertical-align: top; padding: .25rem .6rem .25rem 0;
  border-bottom: 1px solid #e3e8ee; }
th { font-weight: 600; }
code { font: .8rem/1.4 ui-monospace, monospace; overflow-wrap: anywhere; }
pre { font: .78rem/1.4 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere;
  background: #f4f6f8; padding: .7rem; }
.note { color: #51606f; }
@media print {
  body { margin: 0; max-width: none; font-size: 10pt; }
  tr, h2, h3 { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
  thead { display: table-header-group; }
}
"""
_NOTE = (
    "This page is the coordinator's own statement, signed with its key. tessera report verify FILE "
    "--coordinator-key KEY refuses a page or a file that was changed. Silos have their own signed manifests, "
    "whose hashes are below. A stored head of the audit log is evidence against a coordinator that rewrites "
    "the log."
)

# Nothing is loaded or run, whatever the report contains.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"

Document = dict[str, Any]


def page(report: Document) -> str:
    """Return the page of a report, with the signed report itself in it as data."""
    names = {member["client"]: member["name"] for member in report["members"]}
    title = f"{report['name']}: report of {_time(report['issued_at'])}"
    parts = (
        f"<h1>{_text(report['name'])}</h1>",
        f'<p class="note">{_text(_NOTE)}</p>',
        _facts(report),
        "<h2>Claims</h2>",
        "<ul>" + "".join(f"<li>{_text(claim)}</li>" for claim in report["claims"]) + "</ul>",
        "<h2>Members</h2>",
        _members(report),
        "<h2>Rounds</h2>",
        _rounds(report, names),
        "<h2>Plan</h2>",
        f"<pre>{_text(json.dumps(json.loads(report['plan']), indent=1, ensure_ascii=False))}</pre>",
        "<h2>Participations</h2>",
        *(_participations(entry, names) for entry in report["rounds"]),
        "<h2>Audit log</h2>",
        _audit(report, names),
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f"<title>{_text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + f"\n{DATA_BEGIN}{_data(report)}{DATA_END}\n</body>\n</html>\n"
    )


def _facts(report: Document) -> str:
    published = sum(entry["state"] == "published" for entry in report["rounds"])
    abandoned = sum(entry["state"] == "abandoned" for entry in report["rounds"])
    finished = _time(report["finished_at"]) if report["finished_at"] else "no"
    return _table(
        (),
        [
            ("Federation", _code(report["federation"])),
            ("State", _text(report["state"])),
            ("Created", _text(_time(report["created_at"]))),
            ("Finished", _text(finished)),
            ("Rounds", _text(f"{published} published, {abandoned} abandoned")),
            ("Issued by", _text(f"{report['coordinator']}, {_time(report['issued_at'])}")),
            ("Key", _code(report["signing_key"])),
            ("Thumbprint", _code(thumbprint(report["signing_key"]))),
            ("Digest of the plan", _code(report["plan_digest"])),
            ("Roster", _text(f"{report['roster_version']} entries, ") + _code(report["roster_hash"])),
            ("Audit log", _text(f"{report['audit_number']} entries, ") + _code(report["audit_hash"])),
            ("Signature", _code(report["signature"])),
        ],
    )


def _members(report: Document) -> str:
    return _table(
        (
            "name",
            "organisation",
            "base model",
            "key",
            "enrolled",
            "revoked",
            "up",
            "down",
            "epsilon of sketches",
            "epsilon of training",
        ),
        [
            (
                f"{_text(member['name'])}<br>{_code(member['client'])}",
                _text(member["organisation"]),
                _code(member["base_model"]),
                _code(member["key"]),
                _text(_time(member["enrolled_at"])),
                _text(_time(member["revoked_at"])),
                _text(size(member["bytes"]["up"])),
                _text(size(member["bytes"]["down"])),
                _text(member["epsilon"]),
                _text(member.get("training_epsilon")),
            )
            for member in report["members"]
        ],
    )


def _rounds(report: Document, names: dict[str, str]) -> str:
    return _table(
        ("round", "state", "opened", "ended", "counted", "helped by mixing", "up", "down"),
        [
            (
                _text(entry["round"]),
                _text(f"{entry['state']}: {entry['reason']}" if entry["reason"] else entry["state"]),
                _text(_time(entry["opened_at"])),
                _text(_time(entry["ended_at"])),
                _text(", ".join(names.get(client, client) for client in entry["counted"])),
                _text(_mixing(entry["mixing"])),
                _text(size(entry["bytes"]["up"])),
                _text(size(entry["bytes"]["down"])),
            )
            for entry in report["rounds"]
        ],
    )


def _mixing(counts: Document | None) -> str | None:
    """Return how many clients mixing helped, harmed, or changed by less than the noise of their examples."""
    if counts is None:
        return None
    return f"{counts['better']} better, {counts['worse']} worse, {counts['noise']} within noise"


def _participations(entry: Document, names: dict[str, str]) -> str:
    rows = [
        (
            _text(names.get(part["client"], part["client"])),
            _text(f"{part['state']}: {part['reject_reason']}" if part["reject_reason"] else part["state"]),
            _text(size(part["bytes"]["up"])),
            _code(part["update"]),
            _code(part["manifest"]),
        )
        for part in entry["participations"]
    ]
    heading = f"<h3>Round {_text(entry['round'])}</h3>"
    return heading + _table(("member", "state", "up", "digest of the update", "hash of the manifest"), rows)


def _audit(report: Document, names: dict[str, str]) -> str:
    return _table(
        ("number", "when", "event", "by", "about", "reason"),
        [
            (
                _text(entry["number"]),
                _text(_time(entry["at"])),
                _text(entry["event"]),
                _code(entry["actor"]),
                _text(names.get(entry["subject"], entry["subject"])),
                _text(entry["reason"]),
            )
            for entry in report["audit"]
        ],
    )


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of cells that are HTML; without columns, the first cell of a row is its heading."""
    headings = "".join(f"<th>{_text(column)}</th>" for column in columns)
    head = f"<thead><tr>{headings}</tr></thead>" if columns else ""
    body = "".join(
        "<tr>"
        + "".join(
            f"<th>{cell}</th>" if not columns and i == 0 else f"<td>{cell}</td>" for i, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    return f"<table>{head}<tbody>{body}</tbody></table>"


def _text(value: object) -> str:
    return "–" if value is None or value == "" else escape(str(value))


def _code(value: object) -> str:
    return "–" if value is None else f"<code>{escape(str(value))}</code>"


def _time(value: str | None) -> str | None:
    """Return a time in whole seconds, as the report has it in UTC."""
    return None if value is None else f"{value[:10]} {value[11:19]} UTC"


def _data(report: Document) -> str:
    """Return the report as JSON in which no tag can end."""
    # The data are inside of a script element, which `</script>` in a name would end.
    return json.dumps(report, ensure_ascii=False).replace("<", "\\u003c").replace("&", "\\u0026")
