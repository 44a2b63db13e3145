"""Messages of MCP, and what they say. It knows no other package, no transport and no clock.

jsonrpc             one message: reading it, editing it, making one
client_message      what a client's message says, read once
ids_in_messages     which tasks a message names, and names that other readers may read otherwise
sse                 event streams
task                one task
capabilities        the result of `initialize`
task_observations   what a message says about tasks
"""
