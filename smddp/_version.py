"""The version, in a separate file: reading it does not import the package's public names."""

__version__ = "0.1.0"
