"""Code that runs in the sandbox to lock, fetch, build and unpack packages.

The modules use only the standard library. Each is passed to a job as text. The server does not import them.
"""
