"""The byte format of a checkpoint: names, manifest, digests, tensors and the state tree. Nothing here does I/O."""
