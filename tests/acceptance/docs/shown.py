"""Comparison of an output with a page: `...` matches any text.

Numbers, times, ids and the token that ends answers may differ.
Words are compared, not lines: a table is wrapped elsewhere when a number is longer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_BOX = re.compile(r"[\u2500-\u257f]+")
_LOG = re.compile(r"^(?:\[?[\d:/.,T +-]+\]? +)?(?:DEBUG|INFO|WARNING|ERROR) +")
_NOISE = ("[transformers]",)
_ID = r"\b(?:fed|cli|tok|adm|tsr1|tsp1)_[A-Za-z0-9_-]+"
_MASKED = re.compile(
    rf"(?P<id>{_ID})"
    r"|(?P<any>\.\.\.)"
    r"|(?P<side>\b(?:served|trained)(?= kept\b))"
    r"|(?P<url>https?://[\w.:-]+)"
    r"|(?P<slug>\bllama-\d+x\d+-[0-9a-f]{12})"
    r"|(?P<end><\|im_end\|>)"
    r"|(?P<time>\d{4}-\d\d-\d\dT[0-9:.]+(?:Z|[+-]\d\d:\d\d))"
    r"|(?P<key>(?<![\w-])[\w-]{43}(?![\w-]))"
    r"|(?P<quantity>[-+]?\d+(?:\.\d+)?(?: (?:ms|s|min|h|days?|B|kB|KiB|MiB|GiB)(?!\w))?)"
    r"|(?P<space> +)"
)
_PATTERNS = {
    "any": ".*",
    "side": "(?:served|trained)",
    "url": r"https?://[\w.:-]+",
    "slug": r"llama-\d+x\d+-[0-9a-f]{12}",
    "end": r"<(?:\|im_end\||eos)>",
    "time": r"\d{4}-\d\d-\d\dT[0-9:.]+(?:Z|[+-]\d\d:\d\d)",
    "key": r"[\w-]{43}",
    "quantity": r"[-+]?\d+(?:\.\d+)?(?: (?:ms|s|min|h|days?|B|kB|KiB|MiB|GiB)(?!\w))?",
    "space": " +",
}


def plain(text: str) -> list[str]:
    """Return lines without the borders of tables, the heads of log lines and empty lines."""
    lines = (" ".join(_BOX.sub(" ", _LOG.sub("", line.strip())).split()) for line in text.splitlines())
    return [line for line in lines if line and not line.startswith(_NOISE)]


def ids_of(page: Sequence[str], output: str) -> dict[str, str] | None:
    """Return the ids of the output that stand for those of the page; None where the output is another one."""
    groups: dict[str, str] = {}
    expected = "".join(_line(line, groups) for line in plain("\n".join(page)))
    match = re.fullmatch(expected, "".join(f"{line} " for line in plain(output)))
    return None if match is None else {name: match[group] for name, group in groups.items()}


def has_line(line: str, output: str) -> bool:
    """Whether a line of the output is the line of the page."""
    return any(
        re.fullmatch(_line(text, {}), f"{output_line} ")
        for text in plain(line)
        for output_line in plain(output)
    )


def with_ids(command: str, ids: Mapping[str, str]) -> str:
    """Return a command of the page with the ids of this run."""
    for name, actual in ids.items():
        command = command.replace(name, actual)
    return command


def _line(line: str, groups: dict[str, str]) -> str:
    """Return the pattern of a line and the space behind it; `...` alone is any number of lines."""
    if line == "...":
        return "(?:.* )?"
    pattern, position = (
        "(?:<bos>)?",
        0,
    )  # with which the tests' model begins texts, and that of the pages does not
    for match in _MASKED.finditer(line):
        pattern += re.escape(line[position : match.start()])
        position = match.end()
        if match.lastgroup != "id":
            pattern += _PATTERNS[str(match.lastgroup)]
        elif match[0] in groups:
            pattern += f"(?P={groups[match[0]]})"
        else:
            groups[match[0]] = f"id{len(groups)}"
            pattern += f"(?P<{groups[match[0]]}>{_ID})"
    return pattern + re.escape(line[position:]) + " "
