"""The edge that speaks to processes: JSON-RPC at /rpc and the doors beside it, each thin over the same core."""
