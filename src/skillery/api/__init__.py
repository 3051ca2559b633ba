"""The HTTP interface: JSON-RPC at /rpc, MCP at /mcp and the other endpoints, all over the same core."""
