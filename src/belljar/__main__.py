"""`python -m belljar` is `belljar`."""

import sys

from belljar.cli import main

if __name__ == "__main__":
    sys.exit(main())
