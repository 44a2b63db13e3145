"""Hostile requests and responses, as data. They must do nothing to a neighbour."""
