"""`/v1/skills`: the REST shape that the clients of several vendors speak, as far as it maps (docs/reference/endpoints.md)."""
