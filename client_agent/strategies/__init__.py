"""One file per federated method: what the agent does with the weights it is served."""
