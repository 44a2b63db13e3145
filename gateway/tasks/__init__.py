"""What is known of tasks. It knows no HTTP.

task_entry             what is known of one task: one entry
index                  the entries of one session, and what is derived from all: orders, and pages of queries
reconciliation         what changes an entry: answers, and what passes
session_indexes        the indexes of all sessions: whose they are, when they go; what `initialize` said in each
exchange_observer      what an exchange tells of tasks, and the edit of `initialize`
lifecycle_counts       the lives of all tasks that were seen, for metrics
single_flight          what is being asked of the server, and the queries that wait for it
rate_and_ttl_guards    limits on what clients may ask of tasks, off unless configured
transport_interfaces   what it needs of its surroundings: the ways to the server and back, counts
"""
