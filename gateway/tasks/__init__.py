"""What is known of tasks. It knows no HTTP.

index      the tasks of one session, by status and method
groups     ... and by two timestamps
pages      ... and its pages, kept for those who ask again
record     as of when it is known, what is marked, what is gone
sessions   the indexes of all sessions: whose they are, when they go
passing    what an exchange tells of tasks, and the edit of `initialize`
lives      the lives of all tasks that were seen, for metrics
asks       what is being asked of the server, and the queries that wait for it
guards     limits on what clients may ask of tasks, off unless configured
ports      what all of this needs of its surroundings: the caller, the ways to the server and back, counts, the store
"""
