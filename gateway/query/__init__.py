"""What a filtered `tasks/list` asks for. It knows nothing of how tasks are kept.

criteria       the filter and the order
values         the kinds of values that criteria have
query_string   the query strings that spell criteria
cursor         the cursors of the gateway
"""
