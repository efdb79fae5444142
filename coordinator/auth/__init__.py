"""Authentication of clients and people, and their permissions."""
