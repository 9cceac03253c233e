"""One job's request: its parameters completed, its CreateTrainingJob built once, its code uploaded, and sent."""
