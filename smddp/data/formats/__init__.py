"""File formats of records: tar, JSON lines and RecordIO, each read in sequence."""
