"""The messages of the HTTP contract, one file per noun. Pydantic only: importing them costs no NumPy."""
