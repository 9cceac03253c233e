"""Restore a checkpoint: read untrusted bytes, verify them in memory, then load them into the parts of the run."""
