"""For operators: what they see of the gateway. The rooms that relay and index do not know it.

access_log        the record of each request: metrics, a line of the log and of the audit, a row of the page
metrics           what is counted
task_metrics      metrics of the tasks that were seen, and their rows on the page
traces            spans of requests, off unless configured
log_format        how log lines are written
admin_listener    the listener for health checks, metrics and the page
status_page       the page for people, and what it shows
recent_failures   the last requests, failures and queries, and why requests fail, for the page
recent_rates      rates, failures and p95 of the last minutes, for the page
"""
