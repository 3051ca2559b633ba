"""The endpoint for clients of MCP, with the MCP SDK.

The first request imports the modules that import the SDK: the SDK takes half a second and 35 MB, and many servers never
get such a request.
"""
