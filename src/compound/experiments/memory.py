"""Settings of the C library to keep freed memory instead of returning it to the system after every step.

A training step frees and allocates the same megabytes again; each return costs page faults, about a tenth of
the step. The settings hold for the whole process: the commands make them, importing the library does not.
"""

import ctypes

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3  # mallopt(3)
MIB = 2**20


def keep_memory() -> None:
    """Raise the sizes above which malloc returns memory to the system; no effect without `mallopt`."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    for option, value in ((MMAP_THRESHOLD, 32 * MIB), (TRIM_THRESHOLD, 512 * MIB), (TOP_PAD, 64 * MIB)):
        mallopt(ctypes.c_int(option), ctypes.c_int(value))
