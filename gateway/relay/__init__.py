"""Between client and server.

routes       which upstream, which target, which header fields
caller       the client of a request: its upstream, session and identity; what it gets for a filtered `tasks/list`
pump         the bytes of request and response, passed on
inspection   the messages that pass, read on their way
"""
