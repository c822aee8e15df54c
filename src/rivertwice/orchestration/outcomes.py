"""Whether the task of a Spark job that ended is retried. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rivertwice.errors import RequestError, RivertwiceError

REQUEST = RequestError.reason
_USAGE = 2
_EXIT_CODE = re.compile(r"Error code is: (\d+)")
_REASON = re.compile(r"(?:^|\s)([a-z_]+): (\S.*)$")


def find_refusal(text: str) -> str | None:
    """Return why no retry can cure a job's failure, or None if one may.

    `text` is the operator's error: the exit code, and the end of the job's output. Our jobs print `REASON: message` with the
    reason of the error tree; exit code 2 is a refused argument. A job with neither (a killed JVM, a lost race) may succeed
    the next time.
    """
    final = {error.reason for error in _tree(RivertwiceError) if not error.retryable}
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in reversed(lines):
        matched = _REASON.search(line)
        if matched and matched.group(1) in final:
            return f"{matched.group(1)}: {matched.group(2)}"
    code = _EXIT_CODE.search(text)
    if code and int(code.group(1)) == _USAGE:
        return next((line for line in reversed(lines) if "refused" in line or "error:" in line), lines[-1])
    return None


def _tree(root: type[RivertwiceError]) -> Iterator[type[RivertwiceError]]:
    for child in root.__subclasses__():
        yield child
        yield from _tree(child)
