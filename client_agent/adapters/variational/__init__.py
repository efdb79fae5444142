"""How a client learns which ranks of its adapter matter, and which of their values it sends."""
