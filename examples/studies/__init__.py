"""Studies for `tessera compare`, and what draws their data."""
