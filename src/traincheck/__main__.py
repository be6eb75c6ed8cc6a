"""`python -m traincheck` is `traincheck`."""

import sys

from traincheck.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
