"""Checkpoint stores: the `Store` protocol, and its two implementations, a directory and S3."""

from smddp.checkpoint.stores.opening import open_store
from smddp.checkpoint.stores.store import AlreadyCommittedError, Store, StoreError

__all__ = ["AlreadyCommittedError", "Store", "StoreError", "open_store"]
