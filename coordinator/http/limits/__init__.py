"""Limits on time, rate, size and concurrency per process."""
