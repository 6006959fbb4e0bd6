"""`python -m anynpu`."""

import sys

from anynpu.cli import main

if __name__ == "__main__":
    sys.exit(main())
