"""Limits: how long, how often and how much anyone may ask of this process."""
