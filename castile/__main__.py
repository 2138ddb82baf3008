"""`python -m castile`: the same as the command `castile`. Knows no command."""

import sys

from castile.launch.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
