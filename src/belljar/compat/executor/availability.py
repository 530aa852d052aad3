"""Whether sandboxes can be had here at all, in the words of before."""

from __future__ import annotations

import importlib.util
import sys

# Natively on Linux; in containers with what the extra "docker" installs.
DOCKER_AVAILABLE = sys.platform == "linux" or importlib.util.find_spec("h11") is not None

MISSING = (
    "Docker SDK not available. Install with: pip install docker\n"
    "  hint: Belljar needs no Docker SDK: pip install h11, or use a Linux host"
)
