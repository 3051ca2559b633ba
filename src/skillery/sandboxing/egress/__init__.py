"""The way out for runs that may use the network: a proxy on the host that lets through what a skill's manifest names.

`policy`, `clienthello`, `heads` and `resolving` decide; `look_ups` shares out the threads that look names up; `proxy`,
`exchange` and `streams` carry bytes; `process` is the proxy as a program of its own; `service` is the server's end of
it, `log` what is recorded.
"""
