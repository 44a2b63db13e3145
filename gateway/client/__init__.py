"""`taskgate try` and `taskgate tasks`: an MCP client that shows what a server's tasks are like, and lists them.

Nothing that serves imports this room. It may know the rest of the gateway.

flags    the two command lines
runs     how a command ends
link     the client: requests, answers, sessions, and the words for what fails
mistake  what went wrong where a session could not be opened
bridge   a command behind a bridge; a gateway in front of any server
facts    what lists and costs say, and the verdict
probe    `try`: what is asked, in which order
listing  `tasks`: the list, once or again and again
text     tasks as a table for a terminal
"""
