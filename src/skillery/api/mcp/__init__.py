"""The door for clients of MCP. Nothing here imports the SDK before the first of them comes in: it takes half a second
and 35 MB, and many servers never see one."""
