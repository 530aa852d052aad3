"""What a run gave back: the Execution, its results, and how they are shown."""
