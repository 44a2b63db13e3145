"""HTTP/1 as bytes, without a socket.

request_parser      requests, read with llhttp
response_parser     responses, read with llhttp
message_reader      what both have in common: heads, bodies in chunks
header_fields       header fields
content_codings     which content codings can be read, and how
parsed_head_cache   heads that came before, and what follows from them
cors                what a browser may read of an answer of the gateway's own
address_rewriting   the upstream's own addresses, moved to the gateway's
"""
