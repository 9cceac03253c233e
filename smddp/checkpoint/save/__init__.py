"""Save a checkpoint while training runs: copy the state to memory, write it in background threads, commit on rank 0."""
