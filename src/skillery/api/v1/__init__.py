"""`/v1/skills`: the REST interface of several vendors, see docs/reference/endpoints.md."""
