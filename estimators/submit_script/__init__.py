"""A submit script as it runs without sending anything: what its jobs would be."""
