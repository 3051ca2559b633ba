"""Runs of code in another process, in any sandbox: the dialogue with the process, its log and its end.

`runtime/` is the other side. It runs inside the sandbox and imports no module of the server.
"""
