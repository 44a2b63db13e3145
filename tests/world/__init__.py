"""The servers of the world: what each SDK's task list is like, and what the gateway makes of it (DESIGN 2)."""
