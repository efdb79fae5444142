"""Local training by TRL's trainers, on peft's model of a round's weights."""
