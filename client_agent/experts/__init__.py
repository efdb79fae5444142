"""How a client chooses among the experts of a bank: by losses on a probe set that never leave it."""
