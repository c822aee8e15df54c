"""Great Expectations is imported beside Spark's work without racing PySpark for IPython."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from rivertwice.quality.engine import warm_up_beside

assert "IPython" not in sys.modules and "great_expectations" not in sys.modules
warm_up_beside()
assert "IPython" in sys.modules, "the thread has begun, and PySpark may import IPython now"
from IPython import get_ipython
import great_expectations
"""


def test_ipython_is_there_before_another_thread_imports_it() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
