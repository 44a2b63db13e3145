"""Real servers, started as processes by conftest.py."""
