"""`taskgate try` and `taskgate tasks`: an MCP client that shows what a server's tasks are like, and lists them.

Nothing that serves imports this room. It may know the rest of the gateway.

command_line        what the two command lines have in common; how a command ends
mcp_client          the client: requests, answers, sessions; what went wrong where one could not be opened
temporary_gateway   a command behind a bridge; a gateway in front of any server
try_command         `try`: its flags, what is asked in which order, what is made, what lists and costs say, the verdict
tasks_command       `tasks`: its flags; the list, once or again and again
task_table          tasks as a table for a terminal
"""
