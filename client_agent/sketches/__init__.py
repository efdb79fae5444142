"""Gradient sketches, from which the coordinator computes relevance."""
