"""A silo's data: rows from files or the hub, and the examples that they become."""
