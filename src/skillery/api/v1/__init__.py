"""`/v1/skills`: skills in the REST formats of OpenAI and Anthropic (docs/reference/endpoints.md)."""
