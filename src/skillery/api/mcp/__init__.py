"""The endpoint for clients of MCP.

Modules that import the SDK are imported by the first request: the SDK takes half a second and 35 MB, and many servers
never get such a request.
"""
