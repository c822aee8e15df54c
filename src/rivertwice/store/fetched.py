"""Files of tables on S3 as local files, for readers without S3. A table's data files never change once written."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import unquote, urlsplit

from rivertwice.config import is_s3
from rivertwice.store.places import open_store

_WORKERS = 8


def local_files(uris: Sequence[str], cache: Path) -> list[str]:
    """Return a local path for each file; files on S3 are downloaded into `cache` once. The cache may be deleted at any time."""
    with ThreadPoolExecutor(_WORKERS) as pool:
        return list(pool.map(lambda uri: _local(uri, cache), uris))


def _local(uri: str, cache: Path) -> str:
    if not is_s3(uri):
        return unquote(uri)  # Delta writes a space in a folder's name as %20; our partitions are days
    url = urlsplit(uri)
    folder, _, name = unquote(url.path).strip("/").rpartition("/")
    place, _, part = folder.rpartition("/")
    path = cache / url.netloc / folder / name
    if not path.is_file():
        open_store(f"s3://{url.netloc}/{place}".rstrip("/")).get_file(f"{part}/{name}", path)
    return str(path)
