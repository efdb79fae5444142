"""Examples to try: tiny models, silos with data, studies, the demo, and clients without Tessera."""
