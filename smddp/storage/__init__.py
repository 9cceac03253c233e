"""Bytes in S3 and in files: one engine for S3, with one policy of retries, and archives that nobody vouches for.

It knows nothing of checkpoints or samples.
"""
