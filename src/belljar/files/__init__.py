"""Files of a sandbox: reading and writing them, whole trees in and out, kept workspaces."""
