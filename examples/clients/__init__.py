"""Clients that speak the protocol without Tessera."""
