"""Bounding forgetting: a pull of the adapted model to the bare one on public texts (docs/decisions/0083)."""
