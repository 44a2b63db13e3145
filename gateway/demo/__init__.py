"""`python -m gateway.demo`: the gateway in front of an embedded legacy server. See `legacy.py`."""
