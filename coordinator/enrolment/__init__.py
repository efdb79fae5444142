"""Enrolment: tokens, keys, the roster and eligibility."""
