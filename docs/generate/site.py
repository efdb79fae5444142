"""Rules of the documentation site that mkdocs calls: pages that only the site has, and links to files.

In the repository such a link leads to the file. The site has only documents: with `repo_url` in mkdocs.yml
the link leads to the web page of the repository, and without it the path is printed. A file that does not
exist is an error either way.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any, Final

from docs.generate.pages import ON_SITE

# A warning of this logger fails the build under `strict`.
log = logging.getLogger("mkdocs.hooks.site")

_LAB_NOTES: Final = "lab-notes/"
_LAST: Final = 0.1
"""Lab notes mention everything, and must not hide the page that explains it."""
_LINK: Final = re.compile(r"(?<!!)\[(?P<text>[^\]\[]*)\]\((?P<target>\.\./[^)\s]*)\)")
_FENCE: Final = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Return the text of a page for the site; called by mkdocs for each page."""
    folder, _, name = page.file.src_uri.rpartition("/")
    if folder == "reference" and name in ON_SITE:
        return ON_SITE[name]()
    if page.file.src_uri.startswith(_LAB_NOTES):
        page.meta["search"] = {"boost": _LAST}
    docs = Path(config["docs_dir"])
    return with_links_of_site(
        markdown,
        document=page.file.src_uri,
        root=docs.parent,
        documents=docs.name,
        repository=config["repo_url"] or "",
        warn=lambda text: log.warning("%s: %s", page.file.src_uri, text),
    )


def with_links_of_site(
    markdown: str,
    *,
    document: str,
    root: Path,
    documents: str,
    repository: str,
    warn: Callable[[str], None],
) -> str:
    """Return a document with links for the site.

    Args:
        document: its path in the folder of documents.
        root: the folder of the repository.
        documents: the name of the folder of documents.
        repository: the address of the repository's web page; empty if there is none.
        warn: called with what is wrong with a link.
    """
    folder = PurePosixPath(documents, document).parent

    def replaced(link: re.Match[str]) -> str:
        path, _, fragment = link["target"].partition("#")
        target = os.path.normpath(folder / path).replace(os.sep, "/")
        if target.split("/")[0] == documents:
            return link[0]
        if target.startswith("..") or not (root / target).exists():
            warn(f"{link['target']} does not exist; correct the link")
            return link[0]
        if repository:
            address = f"{repository.rstrip('/')}/blob/HEAD/{target}"
            return f"[{link['text']}]({address}{f'#{fragment}' if fragment else ''})"
        return _without_link(link["text"], target)

    parts = _FENCE.split(markdown)  # fenced code has an odd index
    return "".join(part if index % 2 else _LINK.sub(replaced, part) for index, part in enumerate(parts))


def _without_link(text: str, target: str) -> str:
    plain = text.strip("`")
    return f"`{target}`" if plain in target else f"{text} (`{target}`)"
