"""Pools of guests that are started ahead, and managers of named sandboxes."""
