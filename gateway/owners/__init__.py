"""Whose tasks are whose.

seen     the ids that a caller finds again with a renewed token, or in a new session
own      the owner of each task, where a guard keeps callers apart
named    which tasks a message names
stored   owners and sessions within limits of bytes, number and idle time: which go first
"""
