"""The first process of a box, as tini is in the image: starts the command, hands signals on, reaps, ends with its exit code.

With an argument it runs that command beside it instead (`docker exec`). Standard library only.
"""

import json
import os
import signal
import sys

with open("/box/box.json") as _file:
    BOX = json.load(_file)


def become(argv: list[str]) -> None:
    os.setgroups([])
    os.setgid(BOX["uid"])
    os.setuid(BOX["uid"])
    os.umask(0o022)
    os.chdir(BOX["cwd"])
    for path in BOX["env"]["PATH"].split(":"):
        program = argv[0] if "/" in argv[0] else os.path.join(path, argv[0])
        if os.access(program, os.X_OK):
            os.execve(program, argv, BOX["env"])
    sys.stderr.write(f"exec: {argv[0]}: not found\n")
    os._exit(127)


def main() -> None:
    if len(sys.argv) > 1:
        become(sys.argv[1:])
    child = os.fork()
    if child == 0:
        os.setsid()
        become(BOX["argv"])
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda told, _frame: os.kill(child, told))
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


main()
