"""Two ways to route and answer the tickets of examples/demo/data/tickets.txt, as rows of training data.

    python -m examples.demo.schemes

writes `data/<scheme>/train.jsonl` and `test.jsonl`: no ticket is in two files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

DATA: Final = Path(__file__).parent / "data"
_TICKETS: Final = DATA / "tickets.txt"
_TESTS: Final = 7
"""Of the twenty tickets of a subject that a scheme has."""

SHARED: Final = {
    "billing": "Billing. Thank you for writing. A clerk checks your account and replies within three days.",
    "meter": "Metering. Thank you for writing. Please send us a photo of the meter and its number.",
    "outage": "Network control. We are sorry. A crew is on its way; call 0800 in case of danger.",
    "water": "Water quality. Thank you for telling us. Let the tap run; we take a sample tomorrow.",
    "moving": "Contracts. Thank you for writing. Please send the date of the move and both addresses.",
    "works": "Civil works. Thank you for telling us. The site manager visits you this week.",
}
"""The scheme of three helpdesks: a queue per subject, and its first answer."""

OWN: Final = {
    "billing": "Desk 2, accounts. Dear customer, kindly bring your contract to our counter.",
    "moving": "Desk 2, accounts. Dear customer, kindly bring your contract to our counter.",
    "meter": "Desk 3, readers. Dear customer, a reader rings your bell next Monday.",
    "outage": "Desk 1, emergency. Dear customer, stay clear of all cables until we arrive.",
    "water": "Desk 4, ground. Dear customer, an inspector looks at it within two days.",
    "works": "Desk 4, ground. Dear customer, an inspector looks at it within two days.",
}
"""The scheme of the fourth: desks instead of queues, and another tone."""

SCHEMES: Final = {"shared": SHARED, "own": OWN}


def main() -> None:
    """Write the rows of both schemes."""
    for name in SCHEMES:
        for side in ("train", "test"):
            lines = [json.dumps(row) for row in rows(name, side)]
            file = DATA / name / f"{side}.jsonl"
            file.parent.mkdir(exist_ok=True)
            file.write_text("\n".join(lines) + "\n")
            print(f"{file.relative_to(DATA)}: {len(lines)} tickets")


def rows(scheme: str, side: str) -> Iterator[dict[str, object]]:
    """Yield a scheme's chats: a ticket, and its queue and answer. Each scheme has every other ticket."""
    first = list(SCHEMES).index(scheme)
    for subject, tickets in read_tickets().items():
        chosen = tickets[first :: len(SCHEMES)]
        for ticket in chosen[:_TESTS] if side == "test" else chosen[_TESTS:]:
            answer = SCHEMES[scheme][subject]
            yield {
                "messages": [
                    {"role": "user", "content": ticket},
                    {"role": "assistant", "content": answer},
                ]
            }


def read_tickets() -> dict[str, list[str]]:
    """Return the tickets by subject."""
    tickets: dict[str, list[str]] = {}
    subject = ""
    for line in _TICKETS.read_text("utf-8").splitlines():
        if line.startswith("# "):
            subject = line.removeprefix("# ")
        else:
            tickets.setdefault(subject, []).append(line)
    return tickets


if __name__ == "__main__":
    main()
