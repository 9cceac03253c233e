"""Bytes in S3 and in files: one S3 client with one retry policy, and readers for untrusted archives.

Nothing here knows checkpoints or samples.
"""
