"""`taskgate demo`: the gateway in front of an embedded server that cannot filter its tasks.

`legacy` is that server. `show` starts both and prints what a filtered list costs. It may know the rest of the gateway.
"""
