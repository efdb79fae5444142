"""The Helm charts as Helm renders them; `make charts` rewrites the golden files.

Rendering needs requirements/charts.txt, which has Helm itself as a library.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from tests.acceptance.deployment.composition import ROOT

CHARTS = ROOT / "deploy" / "charts"
GOLDEN = Path(__file__).parent / "charts"
RELEASES: dict[str, dict[str, Any]] = json.loads((GOLDEN / "values.json").read_text("utf-8"))


def golden(release: str) -> Path:
    return GOLDEN / f"{release}.yaml"


def documents(release: str) -> list[dict[str, Any]]:
    """Read the manifests of a golden file."""
    return [document for document in yaml.safe_load_all(golden(release).read_text("utf-8")) if document]


def render(release: str) -> str:
    """Render a chart offline, as `helm template` does; without its notes."""
    import helm_python

    facts = RELEASES[release]
    with helm_python.Chart.load(str(CHARTS / facts["chart"])) as chart:
        chart.validate_schema(facts["values"])
        rendered = chart.render(facts["values"], name=release, namespace="federations")
    manifests = [
        f"# {name}\n{text.strip()}\n"
        for name, text in sorted(rendered.items())
        if name.endswith(".yaml") and text.strip()
    ]
    return "---\n".join(manifests)


if __name__ == "__main__":
    for name in RELEASES:
        golden(name).write_text(render(name), "utf-8")
        print(golden(name).relative_to(ROOT))
