"""How clients and people get their credentials, and how these are recognised."""
