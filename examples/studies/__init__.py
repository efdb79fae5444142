"""Studies for `tessera compare`, and scripts that draw their data."""
