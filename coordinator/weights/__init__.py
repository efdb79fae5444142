"""Weights that clients are served."""
