"""The relay beside the server itself: the same traffic directly and through the gateway, compared by the byte."""
