"""Write the generated pages of docs/reference, or check that they are up to date.

python -m docs.generate [--check]
"""

from __future__ import annotations

import sys
from pathlib import Path

from docs.generate.pages import GENERATED, stale

REFERENCE = Path(__file__).parent.parent / "reference"


def main(arguments: list[str]) -> int:
    """Write the pages and return 0; with --check, name the stale ones and return 1 if there are any."""
    pages = stale(REFERENCE)
    if "--check" in arguments:
        for name in pages:
            print(f"docs/reference/{name} is not up to date; run `make reference`", file=sys.stderr)
        return 1 if pages else 0
    for name, text in pages.items():
        (REFERENCE / name).write_text(text, "utf-8")
        print(f"wrote docs/reference/{name}")
    print(f"{len(GENERATED)} pages are up to date")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
