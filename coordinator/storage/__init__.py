"""Payloads, the server's key, and the logs of events and of audits."""
