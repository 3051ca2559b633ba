"""Code of evaluations that runs in the sandbox."""
