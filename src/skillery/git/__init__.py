"""The git endpoint: clients of git read skills as repositories. There is no code that writes."""
