"""Report-only benches: ratios of two things run interleaved in one go, CPU-seconds before wall time.

They use what the tests share (`tests/README.md`): projects, servers, histories.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
