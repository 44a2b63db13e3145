"""HTTP/1 as bytes, without a socket.

request_parser    requests, read with llhttp
response_parser   responses, read with llhttp
message_reader    what both have in common: heads, bodies in chunks
fields            header fields
codings           which content codings can be read, and how
head_cache        heads that came before, and what follows from them
cors              what a browser may read of an answer of the gateway's own
addresses         the upstream's own addresses, moved to the gateway's
"""
