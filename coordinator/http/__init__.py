"""What all routes share: problems, bodies, downloads, parameters."""
