"""Ask the C library to keep freed memory instead of handing it back to the system after every step.

A training step frees and asks for the same megabytes again; each return trip costs page faults, about a tenth of the step.
Only a program may decide this for its whole process, so the commands do and the library does not.
"""

import ctypes

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3  # mallopt(3)


def keep_memory() -> None:
    """No more than a hint: does nothing where the C library has no `mallopt`."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    for option, value in ((MMAP_THRESHOLD, 32 * 2**20), (TRIM_THRESHOLD, 512 * 2**20), (TOP_PAD, 64 * 2**20)):
        mallopt(ctypes.c_int(option), ctypes.c_int(value))
