"""CA-PFL: the importance of ranks in a round (docs/decisions/0024)."""
