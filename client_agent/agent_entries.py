"""The names of all entries at the top of an agent's folder: writers take theirs from here."""

from __future__ import annotations

from typing import Final

LOCK: Final = "agent.lock"
KEY: Final = "client.key"
"""The file of this agent's private key."""
NEXT_KEY: Final = "next.key"
"""The file of the new key during a rotation."""
MEMBERSHIP: Final = "membership.json"
ENROLLED: Final = "enrolled.json"
"""The profile that was enrolled."""
PREPARED: Final = "prepared.json"
LEDGER: Final = "privacy_ledger.json"
START_SCORES: Final = "start_scores.json"
EXPERTS: Final = "experts.json"
SENT: Final = "sent"
"""The folder of the log of sent requests."""
RATES: Final = "rates"
PREFIXES: Final = "prefixes"
MODELS: Final = "models"
TRACKERS: Final = "trackers"
EARLIER: Final = "earlier"
REVISIONS: Final = "revisions"

FILES: Final = (LOCK, KEY, NEXT_KEY, MEMBERSHIP, ENROLLED, PREPARED, LEDGER, START_SCORES, EXPERTS)
FOLDERS: Final = (SENT, RATES, PREFIXES, MODELS, TRACKERS, EARLIER, REVISIONS)
FEDERATION: Final = r"fed_[0-9a-f]+"
"""The pattern of a federation's folder."""
