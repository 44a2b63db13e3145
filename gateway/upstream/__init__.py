"""Servers.

upstream_set            all of them, through reloads; probes of what is down, and health checks
connection_pool         the connections to one: the request out, the response in; the pool of all
dial                    a new connection: addresses in turn, Unix sockets, TLS
health                  the state of an upstream: not asked yet, up or down
caller_identity_drift   sessions in which each request is another caller
"""
