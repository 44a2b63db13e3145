"""Messages of MCP, and what they say. It knows no other package, no transport and no clock.

jsonrpc             one message: reading it, editing it, making one
sse                 event streams
task                one task
capabilities        the result of `initialize`
task_observations   what a message says about tasks
"""
