"""The choice of a client among the experts of a bank, by private losses on a probe set."""
