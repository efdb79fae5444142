"""Identity of clients and the coordinator: keys, signed requests, signed documents, tokens."""
