"""The data parallel library, SMDDP."""
