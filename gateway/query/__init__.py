"""What a filtered `tasks/list` asks for. It knows nothing of how tasks are kept.

criteria       the filter and the order, and the kinds of values that criteria have
list_request   a client's message, read; of a `tasks/list` also the page that it asks for
cursor         the cursors of the gateway, and the query strings that spell criteria
"""
