"""Compare methods honestly: the same silos, seeds and local steps, run through the product itself.

Every simulated client enrols at a real coordinator over HTTP and runs `client_agent.rounds.steps`, so that
nothing here can differ from what an agent does.
"""
