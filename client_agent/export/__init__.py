"""Write a trained adapter in a format that other software serves, and score what was written."""
