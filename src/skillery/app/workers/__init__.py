"""Several worker processes behind one listening socket.

The supervisor (`supervisor.py`) forks the workers and replaces those that end. A worker (`worker.py`) is a server
without the socket and without the lock of the home. Workers share the counts of the server's limits, and ask each
other through the supervisor (`links.py`).
"""
