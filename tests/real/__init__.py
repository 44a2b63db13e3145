"""Proof on real parts: real servers, real clients, the real gateway between them."""
