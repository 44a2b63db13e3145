"""taskgate: a transparent reverse proxy for MCP servers that stay on 2025-11-25: a filtered tasks/list."""
