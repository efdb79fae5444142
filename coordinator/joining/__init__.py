"""Joining a round."""
