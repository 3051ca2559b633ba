"""Endpoints for programs without JSON-RPC: files, blobs, archives, runs, documents, metrics and `/v1/skills`."""
