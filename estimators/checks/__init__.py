"""What is wrong with a job, before anything is uploaded or paid for: parameters, limits of AWS, channels."""
