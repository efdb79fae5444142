"""Differential privacy of sketches: noise, releases, their cost, and the ledger."""
