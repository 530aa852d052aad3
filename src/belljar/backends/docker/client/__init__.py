"""A client of the Docker Engine API over h11; its connections belong to no event loop."""
