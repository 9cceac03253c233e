"""The version, in a file of its own: whoever needs it need not import the package's public names."""

__version__ = "0.1.0"
