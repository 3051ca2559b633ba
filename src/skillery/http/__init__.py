"""HTTP parts that `rpc`, `mcp`, `rest`, `web` and `git` share: authentication, requests, responses, operations."""
