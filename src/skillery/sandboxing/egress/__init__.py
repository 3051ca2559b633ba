"""Network access for runs: a proxy on the host that allows the hosts in a skill's manifest.

`policy`, `clienthello`, `http_heads` and `resolver` decide; `lookups` shares the threads that resolve names; `proxy`,
`exchange` and `streams` carry bytes; `process` is the proxy as a separate program; `service` is its client in the
server; `log` records connections.
"""
