"""Code that runs in the sandbox to lock, download, build and unpack packages.

The modules use only the standard library. A job gets them as text. The server does not import them.
"""
