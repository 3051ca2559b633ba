"""Endpoints for programs without JSON-RPC: files, blobs, archives, documents, metrics and `/v1/skills`."""
