"""Running Python code in another process, in any sandbox: the dialogue with the process, its log and its end.

`runtime/` is the other side: it runs inside the sandbox and imports nothing of the server.
"""
