"""Weights: what clients are served."""
