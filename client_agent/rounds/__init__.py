"""The steps of one round in a silo, and what they need."""
