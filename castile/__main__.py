"""The program `castile`, and `python -m castile`. Knows no command."""

import sys


def main() -> int:
    """Runs the command line and returns the exit status, 130 also where Ctrl-C comes while the program is loaded."""
    try:
        from castile.launch.__main__ import main as run
    except KeyboardInterrupt:
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
