"""The dashboard page; the browser reads the API with the user's token."""
