"""What a run returns: the Execution, its results, and how they are shown."""
