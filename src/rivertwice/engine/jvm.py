"""What is known of a session of Spark before there is one: settings that its JVM takes only at its start. Imports no Spark."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rivertwice.core import Settings, SparkVersion
from rivertwice.engine.class_archive import class_options
from rivertwice.engine.java import java_env

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Spark = Callable[[], "SparkSession"]
"""Gives a session when one is needed (`engine.session.spark_on_demand`): what takes it may find that it needs none."""

# Options for every JVM that may decode Avro; a JVM takes them only at its start.

# A record may claim a text of 2 GB in five bytes, and Avro would reserve the memory before it reads the bytes.
AVRO_LIMITS = " ".join(
    f"-Dorg.apache.avro.limits.{what}.maxLength={most}"
    for what, most in (("string", 67_108_864), ("bytes", 67_108_864), ("collectionItems", 1_048_576))
)

LOGGING = Path(__file__).with_name("log4j2.properties").as_uri()
# A JVM writes its warnings to stdout, which belongs to a command's results (ran: `--output json` after an archive it refused).
JVM_SPEAKS = "-Xlog:disable -Xlog:all=warning:stderr -XX:+DisplayVMOutputToStderr"
# A JVM that lives for a minute: compiled by C1 only it spends a quarter less CPU. C1 alone would have 48 MB for all code.
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
QUICK_RECORDS, QUICK_BATCHES = 300_000, 300
"""A run over more records, or a replay of more micro-batches, earns back what the full compiler costs: its tasks take a third less CPU."""


def is_quick(*, records: int = 0, batches: int = 0) -> bool:
    """Say whether a run is so short that its JVM is better off with `QUICK_JVM`. Pure.

    Args:
        batches: that it replays.
    """
    return records <= QUICK_RECORDS and batches <= QUICK_BATCHES


# Hadoop looks at files by the programs `chmod` and `readlink`: some thirty in a micro-batch. Java would start each by a helper program.
NO_HELPER = "-Djdk.lang.Process.launchMechanism=VFORK"
# Without these programs: a file system that does the same by Java's own calls. Spark's usual way to a checkpoint, by Hadoop's
# `FileContext`, has no such file system, so checkpoints are written by `FileSystem`: the same temporary names, renames and checksums.
IN_JAVA_JAR = "hadoop-bare-naked-local-fs"


def in_java() -> dict[str, str]:
    """Return the settings by which the installed Spark looks at files, and writes checkpoints, without Hadoop's programs."""
    manager = SparkVersion.installed().streaming_class("checkpointing", "FileSystemBasedCheckpointFileManager")
    return {
        "spark.hadoop.fs.file.impl": "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem",
        "spark.sql.streaming.checkpointFileManagerClass": manager,
    }


# In a heap of 2 GB an object above half a megabyte would be humongous: each fetch of Kafka's, after which G1 marks the whole heap.
WIDE_REGIONS = "-XX:G1HeapRegionSize=4m"
# G1 begins with a 64th of the machine's memory, fills it in each batch, and makes it small again after each marking. A share and not
# a size: a user's smaller limit bounds it, where `-Xms` would keep the JVM from starting.
WIDE_HEAP = "-XX:InitialRAMPercentage=6 -XX:MaxHeapFreeRatio=100"

# What Spark keeps of earlier batches. Records that it fetched and that no task used are kept for five minutes by default:
# at 10,000 records a second that is gigabytes. And the status of 1,000 jobs is kept although no page shows it.
BOUNDED_MEMORY = {
    "spark.kafka.consumer.fetchedData.cache.timeout": "10s",
    "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval": "10s",
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "200",
    "spark.ui.dagGraph.retainedRootRDDs": "20",
    "spark.sql.ui.retainedExecutions": "20",
}


DRIVER_LIMITS = {"spark.driver.memory": "2g", "spark.driver.maxResultSize": "512m"}
"""The heap of a driver, and how much of one result it collects: a quarter of that. Above it executors write a batch's rows, and side
rows are collected in pieces."""


def driver_limits(env: Mapping[str, str]) -> dict[str, str]:
    """Return the limits of a driver that Spark's own file of defaults does not say."""
    file = Path(env.get("SPARK_CONF_DIR", "")) / "spark-defaults.conf"
    said = file.read_text() if env.get("SPARK_CONF_DIR") and file.is_file() else ""
    named = {words[0] for line in said.splitlines() if (words := line.replace("=", " ").split())}
    return {name: value for name, value in DRIVER_LIMITS.items() if name not in named}


_STARTS = (
    "SPARK_",
    "PYSPARK_",
    "JAVA_",
    "_JAVA",
    "JDK_",
    "HADOOP_",
    "AWS_",
    "AZURE_",
    "GOOGLE_",
    "PYTHON",
    "LD_",
    "OTEL_",
    "LC_",
    "KRB5",
)
_NAMES = (
    "LANG",
    "LANGUAGE",
    "TZ",
    "HOME",
    "USER",
    "TMPDIR",
    "STORAGE_EMULATOR_HOST",
    "http_proxy",
    "https_proxy",
    "no_proxy",
)
"""Variables that Spark, Java, or a package reads when it starts."""


def jvm_basis(settings: Settings, env: Mapping[str, str]) -> dict[str, Any]:
    """Return what a JVM begins with and cannot change: its settings (`confs`), variables (`env`), and `jars` with size and time of change."""
    jars = settings.connector_jars
    return {
        "confs": {**start_confs(settings, jars), "java": java_env(settings, env)["JAVA_HOME"]},
        # Java's folder is among the settings.
        "env": {
            name: env[name]
            for name in sorted(env)
            if (name != "JAVA_HOME" and name.startswith(_STARTS)) or name in _NAMES
        },
        "jars": tuple((str(jar), jar.stat().st_size, jar.stat().st_mtime_ns) for jar in jars),
    }


def start_confs(settings: Settings, jars: list[Path]) -> dict[str, str]:
    """Return the settings that only a new JVM can take."""
    confs = {
        "spark.master": settings.spark_master,
        # A JVM that is out of memory must end: if it stayed, it would hold a checkpoint that its driver has left (ran).
        "spark.driver.extraJavaOptions": " ".join(
            [
                "-Duser.timezone=UTC",
                "-XX:+ExitOnOutOfMemoryError",
                f"-Dlog4j2.configurationFile={LOGGING}",
                JVM_SPEAKS,
                NO_HELPER,
                WIDE_REGIONS,
                WIDE_HEAP,
                AVRO_LIMITS,
                class_options(settings),
            ]
        ).rstrip(),
        "spark.executor.extraJavaOptions": f"{NO_HELPER} {AVRO_LIMITS}",
        "spark.ui.enabled": "false",
        **BOUNDED_MEMORY,
        **driver_limits(os.environ),
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": str(settings.home / "spark" / "warehouse"),
    }
    confs |= settings.driver_listens
    if jars:
        # The class path is what the class archive covers, so links are followed: a project may link another's jars.
        confs["spark.driver.extraClassPath"] = os.pathsep.join(os.path.realpath(jar) for jar in jars)
        if _is_one_process(settings.spark_master) and any(jar.name.startswith(IN_JAVA_JAR) for jar in jars):
            confs |= in_java()  # an executor elsewhere looks at files before it has the driver's jars
        if not settings.spark_is_local:
            confs["spark.jars"] = ",".join(str(jar) for jar in jars)
    return confs


def _is_one_process(master: str) -> bool:
    return master == "local" or master.startswith("local[")
