"""The service: FastAPI, SQLAlchemy, NumPy. No torch."""
