"""A thousand random exchanges, each perhaps cut short: no whole answer is wrong, and nothing is left behind."""
