"""Images of guests: the caller's own, pulled, or built from a Dockerfile or an Environment."""
