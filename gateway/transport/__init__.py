"""What all connections have in common: sockets, memory, turns of the event loop.

base_connection      the base of all connections
body_stream          a body on its way, and what ends it
memory_budget        the count of all bytes that are held, and its limit; large reads share the turns of the event loop
tls_certificates     certificates and keys: their contexts, their faults, when they end
repeated_log_lines   lines of the log, written once a second at most
"""
