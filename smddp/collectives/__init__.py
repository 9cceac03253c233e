"""``smddp collectives``: check and time every communication of torch.distributed on the available ranks."""
