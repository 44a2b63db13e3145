"""Clients.

listener            all connections of clients: their number, their deadlines, the drain
tls_handshakes      connections with TLS, up to the end of their handshake
client_connection   one of them, and the states of its life
exchange            one request and its response; the only writer of response heads
host_origin_check   who may come in: `Host` and `Origin`
"""
