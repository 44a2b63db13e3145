"""Whose tasks are whose.

task_ids_seen_by_caller   the ids that a caller finds again with renewed credentials, or in a new session
task_owners               the owner of each task, where a guard keeps callers apart
eviction                  owners and sessions within limits of bytes, number and idle time: which go first
"""
