"""The program `castile`, and `python -m castile`. Knows no command."""

import atexit
import gc
import sys


def main() -> int:
    """Runs the command line and returns the exit status, 130 also where Ctrl-C comes while the program is loaded."""
    # Nobody wants what garbage there is at the end: after a large plan it takes a second and a half to find.
    atexit.register(gc.freeze)
    try:
        from castile.launch.__main__ import main as run
    except KeyboardInterrupt:
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
