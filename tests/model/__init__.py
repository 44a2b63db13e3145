"""The gateway against a model of what it promises (DESIGN 6): random histories, every answer held to the promise."""
