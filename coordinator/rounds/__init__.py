"""Rounds: their states, who takes part, and how they are shown."""
