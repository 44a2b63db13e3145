"""`taskgate demo`: the gateway in front of an embedded server that cannot filter its tasks.

`legacy_server` is that server. `demo_run` starts both and prints what a
filtered list costs. It may know the rest of the gateway.
"""
