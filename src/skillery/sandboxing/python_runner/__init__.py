"""Running Python code in another process, whatever holds that process in: the conversation with it, its log, its end.

`runtime/` is the other side: it runs inside and imports nothing of the server.
"""
