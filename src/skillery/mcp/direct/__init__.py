"""Direct answers: the most frequent requests of MCP are answered without the MCP SDK.

The SDK builds a transport, a task group and several models for each message, which takes 1 to 3 ms. A direct answer has
the same bytes: the SDK answers a sample once, and later answers only fill the gaps of that response.

All of this imports the SDK, so the endpoint imports it with the first request.
"""
