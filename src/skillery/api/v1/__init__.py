"""`/v1/skills`: a REST interface for clients of other registries, as docs/reference/endpoints.md describes."""
