"""Every way a JVM is started carries the limits on what an Avro record may claim."""

from __future__ import annotations

import ast

from rivertwice.config import Settings
from rivertwice.pipeline.engine import start_confs
from rivertwice.schemas.jvm import AVRO_LIMITS
from schema_world import PROJECT


def test_sessions_start_with_the_limits(settings: Settings) -> None:
    confs = start_confs(settings, [])
    for side in ("driver", "executor"):
        assert AVRO_LIMITS in confs[f"spark.{side}.extraJavaOptions"]
    assert AVRO_LIMITS.count("maxLength=") == 3


def test_jobs_that_airflow_submits_start_with_the_limits() -> None:
    # Read, not imported: importing an operator starts Airflow's own set-up.
    tree = ast.parse((PROJECT / "src" / "rivertwice" / "orchestration" / "operators.py").read_text())
    (made,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "submit_conf")
    found = {
        ast.literal_eval(key): ast.unparse(value)
        for node in ast.walk(made)
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant)
    }
    for side in ("driver", "executor"):
        assert "AVRO_LIMITS" in found[f"spark.{side}.extraJavaOptions"]
