"""Clients.

tls_handshakes      connections with TLS, up to the end of their handshake
client_connection   their connections: the states of each; their number, their deadlines, the drain
exchange            one request and its response; the only writer of response heads
host_origin_check   who may come in: `Host` and `Origin`
"""
