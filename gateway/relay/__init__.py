"""Between client and server.

routes           which upstream, which target, which header fields
http_caller      the client of a request: whether it may come in, its upstream and identity; its reply to a list
body_pump        the bytes of request and response, passed on; the messages in them, read on their way
error_response   the response for an error
"""
