"""Learning from the outputs of peers' models on public texts (docs/decisions/0069)."""
