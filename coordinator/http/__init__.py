"""HTTP: dependencies, bodies, problem documents and limits."""
