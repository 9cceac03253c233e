"""``smddp collectives``: every communication of torch.distributed, checked and timed on the ranks that there are."""
