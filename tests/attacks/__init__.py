"""Attacks on the service and on secure sums."""
