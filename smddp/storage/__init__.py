"""Bytes in S3: the client, and what its errors mean. It knows nothing of checkpoints or samples."""
