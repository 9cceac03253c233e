"""How records lie in a file: tar, JSON lines and RecordIO, each read in sequence."""
