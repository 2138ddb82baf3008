"""Signals that ask a job to end, and what stands for them between a launcher and its ranks.

It does not know what they end.
"""

import signal
import threading

# What asks before it kills, as batch systems do and a terminal that closes. SIGUSR1 too, because Open MPI's mpirun
# passes SIGTERM on and kills the ranks a quarter of a second later.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
# What a launcher passes on in place of Ctrl-C: mpirun, given that itself, ends its ranks and leaves them no second.
PASSED_ON = signal.SIGUSR2


def hear_no_more() -> None:
    """Let the system end this process where it is asked to end, as it does so already."""
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
