"""A client's own update and the mean of its peers, mixed in a fixed proportion."""
