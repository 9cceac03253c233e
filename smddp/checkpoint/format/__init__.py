"""What a checkpoint is in bytes: names, manifest, digests, tensors and the tree of the state. Nothing here does I/O."""
