"""Updates of clients: received, checked and stored."""
