"""Save a checkpoint while training runs: copy the state to memory, write it in background threads, commit on rank 0.

docs/explanation/one-save.md follows one save from the training loop to the disk.
"""
