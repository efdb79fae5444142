"""How clients and the coordinator prove who they are: keys, signed requests, signed documents, tokens."""
