"""What a handle on a training job does beside asking the API: its events, metrics, live status, files, and resume."""
