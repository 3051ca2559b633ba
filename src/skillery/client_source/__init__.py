"""Descriptions of the methods for programs and models: OpenRPC, tool schemas, the prompt, and sources of clients."""
