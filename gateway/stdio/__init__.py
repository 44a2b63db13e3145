"""A server that a host starts, wrapped (DESIGN 11).

stdio_proxy   what happens to each line; the process
messages      requests and answers of the gateway's own; which request each response answers
lines         lines, whole and in pieces
pipes         standard streams, read and written
child         the server's process
"""
