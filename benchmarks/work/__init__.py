"""What is measured, one module a kind of work; they run inside of a peer's own process."""
