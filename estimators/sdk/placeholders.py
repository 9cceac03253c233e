"""Placeholders in a request built without the network, for values that AWS or an upload decides."""

NO_ACCOUNT = "000000000000"
"""The account in the ARN of a role known only by name, and in the name of the SDK's default bucket."""
CODE = ("s3://no-bucket/source/sourcedir.tar.gz", "script.py")
"""The S3 URI of the code, and the script in it."""
