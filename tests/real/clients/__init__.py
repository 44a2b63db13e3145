"""Clients as anybody would write them, each with an SDK's own parts: see `conversation.py` for what they say."""
