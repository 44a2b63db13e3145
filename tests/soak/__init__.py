"""A thousand random exchanges, each perhaps ended too early: nothing whole and wrong, nothing left behind."""
