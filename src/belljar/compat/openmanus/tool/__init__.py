"""OpenManus' tools that run Python, under their own names."""
