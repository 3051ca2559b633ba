"""JSON-RPC 2.0 at `POST /rpc`."""
