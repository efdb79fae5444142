"""The main job, end to end: a coordinator, seven silos as processes, five methods, one report."""
