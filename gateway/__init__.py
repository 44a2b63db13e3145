"""taskgate: a transparent reverse proxy that gives MCP servers of the 2025-11-25 era a filtered tasks/list."""
