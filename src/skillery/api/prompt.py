"""The system prompt for a model with the tools: appendix A of the Skills Protocol v0.1, word for word."""

PROMPT = """\
You are connected to a Skills Runtime using the Skills Protocol.

If you have not yet read the Skills Protocol Guide,
you MUST call the `load_skills_protocol_guide` tool before using
any other Skills Protocol tools.

After reading the guide, follow its workflow:
discover → inspect → run or write code → use blobs for large data.
"""
