"""`make bench`: speed and memory of the gateway beside its peers, measured in the same run on the same machine."""
