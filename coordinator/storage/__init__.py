"""Payloads, the server's key, the event log and the audit log."""
