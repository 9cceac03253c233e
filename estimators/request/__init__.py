"""One job's request: its parameters completed, its CreateTrainingJob built once, and its code uploaded."""
