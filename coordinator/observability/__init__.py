"""Logs, metrics and the places where tests inject faults."""
