"""Messages of the HTTP contract, one file per noun. Pydantic only, no NumPy."""
