"""What can be tried at once: tiny models, silos with data, studies, the demo, and clients without Tessera."""
