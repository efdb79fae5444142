"""Logs, metrics and fault points."""
