"""The same traffic directly and through the gateway, compared byte by byte."""
