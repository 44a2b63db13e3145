"""What is known of tasks. It knows no HTTP.

index          the tasks of one session, by status, method and two timestamps, and its pages
freshness      as of when it is known, what is marked, what is gone
sessions       the indexes of all sessions: whose they are, when they go
observer       what an exchange tells of tasks, and the edit of `initialize`
lifecycles     the lives of all tasks that were seen, for metrics
in_flight      what is being asked of the server, and the queries that wait for it
guards         limits on what clients may ask of tasks, off unless configured
interfaces     what it needs of its surroundings: the caller, the ways to the server and back, counts
"""
