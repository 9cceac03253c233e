"""SMDDP for PyTorch."""
