"""What is known of tasks. It knows no HTTP.

index                  the tasks of one session, by status, method and two timestamps, and its pages
reconciliation         as of when it is known, what is marked, what is gone
session_indexes        the indexes of all sessions: whose they are, when they go
exchange_observer      what an exchange tells of tasks, and the edit of `initialize`
lifecycle_counts       the lives of all tasks that were seen, for metrics
single_flight          what is being asked of the server, and the queries that wait for it
rate_and_ttl_guards    limits on what clients may ask of tasks, off unless configured
transport_interfaces   what it needs of its surroundings: the caller, the ways to the server and back, counts
"""
