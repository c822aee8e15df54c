"""Names of the files of a definition."""

from __future__ import annotations

YAML_FILE = "pipeline.yaml"
TRANSFORM_FILE = "transform.sql"
ROWS_FILE = "rows.sql"
FOLD_FILE = "fold.py"
FAST_FILE = "fast.sql"
