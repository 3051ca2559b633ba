"""Workspaces: files that callers keep between runs, as snapshots in the storage of contents."""
