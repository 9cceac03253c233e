"""Channels in FastFile mode: a read-only file system whose files are objects in S3, read as the program reads them."""

from __future__ import annotations

from estimators.local.engine.fast_file.fast_files import FastFiles

__all__ = ["FastFiles"]
