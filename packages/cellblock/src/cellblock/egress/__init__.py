"""Network access for runs: a proxy on the host, which connects only to permitted hosts.

`policy`, `clienthello`, `http_heads` and `resolver` decide what is allowed. `lookups` shares the threads that resolve
names. `proxy`, `exchange` and `streams` forward bytes. `process` is the proxy as a separate program, and `service` is
its client in the server. `log` records connections.
"""
