"""Write the report of a demo: its figures as JSON, and a page from a Jinja template beside it."""

from __future__ import annotations

import json
from pathlib import Path

import jinja2


def write_report(folder: Path, document: object, template: Path, **values: object) -> Path:
    """Write report.json and report.html into a folder, and return the page's path.

    `document` is what the JSON file holds; `values` are the variables of the template.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(template.parent), autoescape=True)
    page = folder / "report.html"
    page.write_text(environment.get_template(template.name).render(**values), "utf-8")
    return page
