"""The coordinator: FastAPI, SQLAlchemy, NumPy. No torch."""
