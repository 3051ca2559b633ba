"""The HTTP interface: JSON-RPC at /rpc, MCP at /mcp and the other endpoints. All endpoints use the same core."""
