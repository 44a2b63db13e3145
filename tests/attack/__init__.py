"""Hostile requests and hostile responses, as data, and what they may do to a neighbour: nothing (issue 9)."""
