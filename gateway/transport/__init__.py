"""What all connections have in common: sockets, memory, turns of the event loop.

base_connection   the base of all connections
body              a body on its way, and what ends it
memory_budget     the count of all bytes that are held, and its limit
read_scheduler    large reads share the turns of the event loop
tls               certificates and keys: their contexts, their faults, when they end
log_rate_limit    lines of the log, written once a second at most
"""
