"""A silo's membership and keys, and what it has seen of its coordinator."""
