"""Enrolment: tokens, keys, the roster, and who is eligible."""
