"""Libraries that record numbers of training and rounds, on both sides; imported when they are used."""
