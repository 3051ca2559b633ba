"""The tasks extension of MCP, `io.modelcontextprotocol/tasks` (2026-07-28). A task is a run.

A client that declares the extension gets a task instead of a result if a tool call starts a run that takes long. The
client then polls `tasks/get`, which any server of the database answers.
"""
