"""How a filtered `tasks/list` comes to be answered: what must be asked of the server first, and the answer.

query_answer       the answer to one query: from plan to plan, until the index is fresh enough
planning           the plan: to ask only for what can have changed
plan_execution     carries a plan out: a crawl, a delta, or an access check
retrying_crawler   requests of the gateway's own, and pages
listing_order      whether pages show their tasks in order of creation
"""
