"""Learning which ranks of an adapter matter, and the choice of the update's values that are sent."""
