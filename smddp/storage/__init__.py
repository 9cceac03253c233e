"""Bytes in S3 and in files: the client and what its errors mean, and archives that nobody vouches for.

It knows nothing of checkpoints or samples.
"""
