"""One file per federated method: whom each client listens to."""
