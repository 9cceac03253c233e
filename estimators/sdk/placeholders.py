"""What stands in a request that is built without the network for what only AWS, or an upload, decides."""

NO_ACCOUNT = "000000000000"
"""The account in the ARN of a role that is given by its name, and in the name of the SDK's own bucket."""
CODE = ("s3://no-bucket/source/sourcedir.tar.gz", "script.py")
"""The S3 URI of the code, and the script there."""
