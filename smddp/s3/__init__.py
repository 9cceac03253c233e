"""How smddp speaks to S3, whatever for: the client, and what its errors mean."""
