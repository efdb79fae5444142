"""A page to look at. It has no data of its own: the browser asks the API with the reader's token."""
