"""A command's pyarrow asks for pandas late, and has it when it is needed; a user's program is left as it is."""

from __future__ import annotations

import subprocess
import sys

COMMAND = "from rivertwice.core.one_command import say_one_command; say_one_command(); "
OPEN = "import sys, pyarrow as pa, rivertwice.storage.snapshot; rows = pa.table({'a': [1.5, None]}); rows.to_pylist(); "


def said(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_a_command_reads_rows_without_pandas() -> None:
    assert said(COMMAND + OPEN + "print('pandas' in sys.modules)") == "False\n"


def test_a_command_that_needs_a_frame_gets_it_and_knows_frames_then() -> None:
    code = (
        "import numpy as np; print(rows.to_pandas()['a'].sum()); import pandas as pd; "
        "print(pa.array(pd.Series([1.0, np.nan])).null_count, pa.Table.from_pandas(pd.DataFrame({'b': [1]})).num_rows)"
    )
    assert said(COMMAND + OPEN + code) == "1.5\n1 1\n"


def test_a_frame_from_elsewhere_is_understood_in_a_command() -> None:
    code = "import pandas as pd; print(pa.Table.from_pandas(pd.DataFrame({'b': [1.0, None]}))['b'].null_count)"
    assert said(COMMAND + OPEN + code) == "1\n"


def test_a_program_of_a_user_can_pass_series_at_once() -> None:
    code = "import numpy as np, pandas as pd; print(pa.array(pd.Series([1.0, np.nan])).null_count)"
    assert said(OPEN + code) == "1\n"
