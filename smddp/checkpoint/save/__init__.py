"""From a running training to a durable checkpoint: one copy in memory, then the ranks' threads and rank 0's commit."""
