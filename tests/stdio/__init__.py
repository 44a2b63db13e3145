"""Standard input and output: `taskgate stdio` between real pipes, and as a process (DESIGN 11)."""
