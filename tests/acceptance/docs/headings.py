"""Links, headings and sections of pages."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

LINK = re.compile(r"!?\[[^\]\[]*\]\(([^)\s]+)\)|!?\[!\[[^\]]*\]\([^)]*\)\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def links(text: str) -> list[str]:
    """Return the targets of links inside the repository, without those in fenced blocks."""
    targets = [first or second for first, second in LINK.findall(_FENCE.sub("", text))]
    return [target for target in targets if "://" not in target and not target.startswith("mailto:")]


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors of a page's headings, as GitHub and the documentation site make them."""
    headings = re.findall(r"^#{1,6} (.+)$", _FENCE.sub("", page.read_text("utf-8")), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return frozenset(_anchor(text) for text in plain)


def section(page: Path, anchor: str) -> str:
    """Return the text below the heading of level 2 with this anchor, up to the next one; else the page.

    Raises:
        StopIteration: the page has no such heading of level 2.
    """
    text = page.read_text("utf-8")
    if not anchor:
        return text
    parts = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    return next(part for part in parts if _anchor(part.partition("\n")[0].lstrip("# ")) == anchor)


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
