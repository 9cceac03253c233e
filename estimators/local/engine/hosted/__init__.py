"""Jobs on hosts: what training and processing jobs share."""
