"""A program of the platform on a machine whose clock was set after other programs had started.

The kernel derives the boot's wall-clock time from the clock (`btime` of /proc/stat), and creation times of processes are
counted from it: a clock that is set moves them all. Here it is moved for one program.

Usage: python -m lab.faults.stepped SECONDS MODULE ARGUMENTS...
"""

from __future__ import annotations

import runpy
import sys

import psutil


def main() -> None:
    """Move the boot's time, then run the module."""
    seconds, module = float(sys.argv[1]), sys.argv[2]
    before = psutil.boot_time()
    psutil._pslinux.boot_time = lambda: before + seconds
    sys.argv = [module, *sys.argv[3:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
