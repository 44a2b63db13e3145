"""Between client and server.

admission        who may come in, and for whom: from the head of a request to its caller
routes           which upstream, which target, which header fields
caller           the client of a request: its upstream, session and identity; what it gets for a filtered `tasks/list`
pump             the bytes of request and response, passed on
taps             the messages that pass, read on their way
error_response   the response for an error
"""
