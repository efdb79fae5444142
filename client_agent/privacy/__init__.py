"""Differential privacy of what leaves a silo: noise, releases, what they cost, and the book about it."""
