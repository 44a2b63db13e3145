"""`taskgate demo`: the gateway in front of an embedded server that cannot filter its tasks.

`legacy_server` is that server. `demo_run` tries it, and stays in front of it. It may know the rest of the gateway.
"""
