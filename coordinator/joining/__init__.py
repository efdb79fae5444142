"""How a client joins a round."""
