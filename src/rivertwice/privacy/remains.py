"""Other places with the value: logs, alerts and events, copies fetched from S3, old versions in a bucket.

Running processes write logs and `.jsonl` files, so these are not moved or shortened: the value is overwritten in place, with
the same number of bytes. Places that cannot be reached from here are described in words, for the outcome.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from rivertwice.config import PipelineHome, Place, Settings, is_s3
from rivertwice.pipeline.definition import Definition
from rivertwice.privacy.redact import Value
from rivertwice.privacy.spellings import spellings
from rivertwice.store.trees import files_below

_MASK = b"erased-"
_SMALL = 20_000_000  # text files beside the tables that are searched for the value
_TEXT = re.compile(r"\.(json|jsonl|log|html|txt)(\.[0-9]+)?$")
_APPENDED = re.compile(r"\.(jsonl|log)(\.[0-9]+)?$|^log(\.[0-9]+)?$")


def mask_appended(settings: Settings, homes: Iterable[PipelineHome], value: Value) -> dict[str, int]:
    """Overwrite the value in logs, also rotated ones, and in `.jsonl` files; return path below the home to the number of hits.

    Numbers are not overwritten: in a log a number may mean anything.
    """
    if not isinstance(value, str):
        return {}
    files = [settings.home / "alerts.jsonl", *files_below(settings.home / "agent")]
    for home in homes:
        files += [*home.root.glob("*.jsonl"), *files_below(home.logs)]
    counts = {}
    for path in sorted({candidate for candidate in files if _APPENDED.search(candidate.name) and candidate.is_file()}):
        count = mask_file(path, value)
        if count:
            counts[str(path.relative_to(settings.home))] = count
    return counts


def mask_file(path: Path, value: str) -> int:
    """Overwrite a text with the same number of bytes where it is a separate word in a file; return the number of hits."""
    word = spellings(value)
    handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        with open(handle, "rb", closefd=False) as file:
            hits = [(match.start(), match.end() - match.start()) for match in word.finditer(file.read())]
        for start, length in hits:
            os.pwrite(handle, (_MASK * (length // len(_MASK) + 1))[:length], start)
        if hits:
            os.fsync(handle)
    finally:
        os.close(handle)
    return len(hits)


def forget_copies(settings: Settings, tables: Iterable[Place]) -> None:
    """Delete this host's copies of tables on S3; they are fetched again when they are read."""
    for table in tables:
        if is_s3(table):
            url = urlsplit(str(table))
            shutil.rmtree(settings.home / "cache" / url.netloc / url.path.strip("/"), ignore_errors=True)


def describe_left(
    settings: Settings, definitions: Mapping[str, Definition], tables: Sequence[Place], value: Value
) -> list[str]:
    """Return in words the places that still contain the value, or may contain it, and that the platform does not rewrite."""
    remains = []
    for name, definition in definitions.items():
        remains += [f"{name}: what was delivered to {sink}" for sink in definition.deliver]
        if definition.fast is not None:
            remains.append(f"{name}: the topic of its fast path")
        home = settings.pipeline(name)
        remains += [f"{name}: {path.relative_to(home.root)}" for path in _files_with(files_below(home.root), value)]
    own = [settings.home / "alerts.jsonl", *files_below(settings.home / "agent")]
    remains += [str(path.relative_to(settings.home)) for path in _files_with(own, value)]
    return remains + _on_s3(tables)


def _on_s3(tables: Sequence[Place]) -> list[str]:
    buckets = sorted({f"s3://{urlsplit(str(table)).netloc}" for table in tables if is_s3(table)})
    if not buckets:
        return []
    from rivertwice.store.s3_versions import explain_kept_versions  # boto3 takes half a second to load

    remains = []
    for bucket in buckets:
        remains.append(f"HOME/cache of every other host that read tables of {bucket}: delete the folder there")
        explanation = explain_kept_versions(bucket)
        remains += [explanation] if explanation is not None else []
    return remains


def _files_with(files: Iterable[Path], value: Value) -> Iterator[Path]:
    if not isinstance(value, str):
        return
    for path in sorted(files):
        is_text = _TEXT.search(path.name) or _APPENDED.search(path.name)
        if not is_text or "_delta_log" in path.parts or not path.is_file() or path.stat().st_size >= _SMALL:
            continue
        if spellings(value, whole_word=False).search(path.read_bytes()):
            yield path
