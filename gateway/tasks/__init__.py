"""A filtered `tasks/list`, from its parameters to its result. It knows no HTTP.

It knows `mcp`, `config`, `errors` and `identity`. A transport gives it what `ports` names.

What is asked:

    criteria    the filter and the order of a query
    values      ... the kinds of values that criteria have
    spelled     ... the query strings that spell criteria
    cursor      the cursors of the gateway

What is known:

    index       the tasks of one session, by status and method
    groups      ... and by two timestamps
    pages       ... and its pages, kept for those who ask again
    record      as of when it is known, what is marked, what is gone
    sessions    the indexes of all sessions: whose they are, when they go
    seen        ... and the ids that a caller finds again with a renewed token, or in a new session
    own         ... whose each task is, where a guard keeps callers apart
    named       ... and which tasks a message names
    stored      ... within limits of bytes, number and idle time: which go first
    replicas    ... shared by several gateways, only if a store is configured
    told        ... what these tell each other of a session
    shared      ... and whose each task is
    lives       the lives of all tasks that were seen, for metrics

What must be asked of the upstream, and which queries wait for it:

    freshness   the plan: to ask only for what can have changed
    planner     from plan to plan, until the index is fresh enough
    refreshes   carry a plan out: a crawl, a delta, or a knock
    asks        what is being asked, and the queries that wait for it
    crawler     requests of the gateway's own, and pages

Towards a transport:

    answer      the answer to one query
    passing     what an exchange tells of tasks, and the edit of `initialize`
    guards      limits on what clients may ask of tasks, off unless configured
    ports       what it needs of its surroundings: the caller, the ways to the server and back, counts, the store
"""
