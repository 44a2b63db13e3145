"""Between client and server.

routes           which upstream, which target, which header fields
http_caller      the client of a request: whether it may come in, its upstream and identity
body_pump        the bytes of request and response, passed on; the messages in them, read on their way
own_requests     requests of the gateway's own, in his name; the reply to a filtered list
"""
