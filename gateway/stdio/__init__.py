"""A server that a host starts, wrapped (DESIGN 11).

stdio_proxy        what happens to each line; the process
line_channel       requests and answers of the gateway's own; which request each response answers
line_splitter      lines, whole and in pieces
standard_streams   standard streams, read and written
child_process      the server's process
"""
