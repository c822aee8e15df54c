"""What still holds an erased value: logs, copies, state files, old versions in a bucket, records that sinks refused.

Running processes write logs and `.jsonl` files, so these are not moved or shortened: the value is overwritten in place, with
the same number of bytes. Places that cannot be reached from here are described in words, for the outcome.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import struct
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from rivertwice.core import PipelineHome, Place, RivertwiceError, Settings, is_remote
from rivertwice.definition import Definition
from rivertwice.deliver import (
    AsideEntry,
    AsideStore,
    make_deliverer,
    only_deliverer,
    rename_asked,
    sinks_of,
    sinks_with_aside,
)
from rivertwice.savepoint import Savepoint, list_savepoints
from rivertwice.storage import files_below
from rivertwice.upkeep.redact import Redactor, Value, spellings

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
    """Delete this host's copies of tables in object stores, and the page's last rows of the overview, whose sentences may quote a value.

    They are fetched and read again when they are asked for.
    """
    (settings.home / "overview.json").unlink(missing_ok=True)
    for table in tables:
        if is_remote(table):
            url = urlsplit(str(table))
            shutil.rmtree(settings.home / "cache" / url.netloc / url.path.strip("/"), ignore_errors=True)


def describe_left(
    settings: Settings, definitions: Mapping[str, Definition], tables: Sequence[Place], value: Value
) -> list[str]:
    """Return in words the places that still contain the value, or may contain it, and that the platform does not rewrite."""
    remains: list[str] = []
    for name, definition in definitions.items():
        remains += [
            f"{name}: what was delivered to {sink}" for sink, to in definition.deliver.items() if not to.registered
        ]
        remains += renew_registered(settings, name)
        if definition.fast is not None:
            remains.append(f"{name}: the topic of its fast path")
        home = settings.pipeline(name)
        remains += [f"{name}: {path.relative_to(home.root)}" for path in _files_with(files_below(home.root), value)]
    own = [
        settings.home / "alerts.jsonl",
        *files_below(settings.home / "alerts"),
        *files_below(settings.home / "agent"),
    ]
    remains += [str(path.relative_to(settings.home)) for path in _files_with(own, value)]
    return remains + _in_stores(tables)


def renew_registered(settings: Settings, name: str) -> list[str]:
    """Let catalogs name the newest files of a pipeline's tables, and no earlier ones; return in words where that failed.

    Done before the files go, so that a reader of the catalog sees either all old rows or all new ones.
    """
    finish = threading.Event()
    finish.set()
    failed = []
    for sink, asked in sinks_of(settings, name).items():
        if asked.registered is None:
            continue
        try:
            make_deliverer(settings, name, sink, asked).run(threading.Event(), finish, again=True)
        except RivertwiceError as error:
            failed.append(
                f"{name}: the {asked.place} names files that were deleted, until `rivertwice deliver run {name} --sink {sink} --until-end "
                f"--again` is done: {error}"
            )
    return failed


def _in_stores(tables: Sequence[Place]) -> list[str]:
    buckets = sorted({"/".join(str(table).split("/")[:3]) for table in tables if is_remote(table)})
    if not buckets:
        return []
    from rivertwice.storage import explain_kept_versions

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


# Which checkpoints hold a value in the files of their state, live ones and the copies in savepoints.
#
# Spark keeps state in RocksDB. A version is a changelog (`V_ID.changelog`: blocks of LZ4 as `net.jpountz.lz4.LZ4BlockOutputStream` writes
# them) or a snapshot: `V_ID.zip` with RocksDB's own records and `SSTs/*.sst` (RocksDB's block-based tables, format 5, as Spark sets it).
# State that Spark removed stays in these files until RocksDB merges them: a removed key is written once more.

_LZ4_MAGIC = b"LZ4Block"
_LZ4_HEAD = struct.Struct("<8sBiii")  # magic, token, packed size, size, checksum
_RAW = 0x10
_SST_MAGIC = 0x88E241B785F4CFF7
_FOOTER = 53
_CODECS = {1: "snappy", 4: "lz4_raw", 5: "lz4_raw", 7: "zstd"}


def describe_left_state(home: PipelineHome, value: Value) -> list[str]:
    """Return in words the live checkpoints and the savepoints that hold a text in a file of their state, with what removes it.

    A number is not looked for: its bytes may mean anything.
    """
    if not isinstance(value, str):
        return []
    name = home.root.name
    lines = []
    for folder in sorted(home.timelines.glob("*")):
        checkpoint = home.checkpoint(folder.name)
        files = (path for path in sorted(checkpoint.rglob("*")) if path.is_file())
        count = _count_with(value, ((str(path.relative_to(checkpoint)), path.read_bytes) for path in files))
        if count:
            lines.append(
                f"{name}: checkpoint of timeline {folder.name}: {count} files of its state, until they are merged or too old; "
                f"erased again with --remake-state, it is made without them"
            )
    for savepoint in list_savepoints(home):
        reads = ((path, _reader_of(savepoint, path)) for path in sorted(savepoint.manifest.files))
        count = _count_with(value, reads)
        if count:
            lines.append(
                f"{name}: savepoint {savepoint.id}: {count} files of its state; it goes with `rivertwice savepoint prune {name}` "
                "once newer ones are proved, or is deleted by an erasure with --remake-state"
            )
    return lines


def _reader_of(savepoint: Savepoint, path: str) -> Callable[[], bytes]:
    return lambda: savepoint.store.get(savepoint.key(path)) or b""


def _count_with(value: str, files: Iterable[tuple[str, Callable[[], bytes]]]) -> int:
    """Return how many of the files contain a text, also as a part of another word: Spark's rows have no separator around it."""
    pattern = spellings(value, whole_word=False)
    return sum(any(map(pattern.search, _pieces(name, read()))) for name, read in files)


def _pieces(name: str, data: bytes) -> Iterable[bytes]:
    try:
        return chain([data], list(unpacked(name, data)))
    except ValueError:
        return [data]  # damaged, or a format of another version: its bytes are looked at as they are


def unpacked(name: str, data: bytes) -> Iterator[bytes]:
    """Yield what a file contains: a text of a key or value is always whole within one of the pieces.

    Args:
        name: the file's name; its ending says what it is. Any other file is one piece.

    Raises:
        ValueError: the file is not as Spark and RocksDB write it.
    """
    try:
        if name.endswith(".changelog"):
            yield b"".join(_lz4_blocks(data))
        elif name.endswith(".sst"):
            yield from _sst_pieces(data)
        elif name.endswith(".zip"):
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                for member in archive.namelist():
                    yield from unpacked(member, archive.read(member))
        else:
            yield data
    except (ValueError, struct.error, zipfile.BadZipFile, zlib.error, IndexError, OSError, pa.ArrowException) as error:
        message = f"{name} is not a state file that can be read: {error}"
        raise ValueError(message) from error


def _lz4_blocks(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        magic, token, packed, size, _ = _LZ4_HEAD.unpack_from(data, at)
        if magic != _LZ4_MAGIC:
            message = f"no block of LZ4 at byte {at}"
            raise ValueError(message)
        at += _LZ4_HEAD.size
        body = data[at : at + packed]
        yield body if token & 0xF0 == _RAW else _unpack("lz4_raw", body, size)
        at += packed


def _unpack(codec: str, body: bytes, size: int) -> bytes:
    return pa.Codec(codec).decompress(body, decompressed_size=size).to_pybytes() if size else b""


def _sst_pieces(data: bytes) -> Iterator[bytes]:
    """Yield the keys and values of a table of RocksDB, and its index, which has keys too."""
    footer = data[-_FOOTER:]
    (magic,) = struct.unpack("<Q", footer[-8:])
    if magic != _SST_MAGIC:
        message = "no footer of a block-based table"
        raise ValueError(message)
    _, at = _varint(footer, 1)  # the handle of the index of all other blocks
    _, at = _varint(footer, at)
    start, at = _varint(footer, at)
    size, _ = _varint(footer, at)
    for key, value in _entries(_block(data, start, size), sized=False):
        yield key
        block_start, at = _varint(value, 0)
        block_size, _ = _varint(value, at)
        for entry in _entries(_block(data, block_start, block_size)):
            yield from entry


def _block(data: bytes, start: int, size: int) -> bytes:
    body, kind = data[start : start + size], data[start + size]
    if kind == 0:
        return body
    if kind not in _CODECS:
        message = f"a block is packed in an unknown way ({kind})"
        raise ValueError(message)
    if kind == 1:
        length, _ = _varint(body, 0)
        return _unpack("snappy", body, length)
    length, at = _varint(body, 0)
    return _unpack(_CODECS[kind], body[at:], length)


def _entries(block: bytes, *, sized: bool = True) -> Iterator[tuple[bytes, bytes]]:
    """Yield the entries of a block; of an index (`sized` false) a value is a handle, as each of its entries is written whole."""
    (last,) = struct.unpack("<I", block[-4:])
    restarts = last & 0x7FFFFFFF  # the highest bit says that a hash index follows
    end = len(block) - 4 - 4 * restarts
    if last != restarts:
        (buckets,) = struct.unpack("<H", block[-6:-4])
        end -= 2 + buckets
    key, at = b"", 0
    while at < end:
        shared, at = _varint(block, at)
        own, at = _varint(block, at)
        length = 0
        if sized:
            length, at = _varint(block, at)
        key = key[:shared] + block[at : at + own]
        at += own
        if not sized:
            if shared:
                message = "an index whose entries depend on one another"
                raise ValueError(message)
            _, after = _varint(block, at)
            _, after = _varint(block, after)
            length = after - at
        yield key, block[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return number, at
        shift += 7


# Replace a value in the records of refused deliveries: in keys, in rows that a destination has, and in its error texts.
#
# An entry is rewritten, not dropped, where that is possible: later records of its key need it, because it contains the row that the
# destination really has.


def rewrite_refused(home: PipelineHome, definition: Definition, redactor: Redactor) -> dict[str, int]:
    """Rewrite the records of a pipeline that were set aside; return PIPELINE/delivery/SINK to the number of changed entries.

    Requests about entries count, too.

    Raises:
        LeaseLostError: a process delivers to a sink meanwhile; the erasure is resumed later.
    """
    changes = {}
    for sink in sinks_with_aside(home):
        with only_deliverer(home, sink):
            count = AsideStore(home, sink).rewrite(lambda entry: without_value(entry, definition, redactor))
            count += rename_asked(home, sink, lambda key: _text(redactor, key))
        if count:
            changes[f"{home.root.name}/delivery/{sink}"] = count
    return changes


def without_value(entry: AsideEntry, definition: Definition, redactor: Redactor) -> AsideEntry | None:
    """Return an entry with the value replaced, or None if the value is in a position of unknown meaning. Pure."""
    key = _text(redactor, entry.key)
    held = entry.held
    if held is not None:
        names = _columns(entry.key, definition)
        values = _values(redactor, names, held["values"])
        held = None if values is None else {**held, "values": values}
        if held is None:
            return None
    reason = redactor.text(entry.reason.encode()).decode()
    new = replace(entry, key=key, held=held, reason=reason, why=redactor.text(entry.why.encode()).decode())
    if isinstance(redactor.value, str) and spellings(redactor.value, whole_word=False).search(
        json.dumps(asdict(new)).encode()
    ):
        return None
    return new


def _text(redactor: Redactor, key: str) -> str:
    new = redactor.text(key.encode()).decode()
    return key if new == key else json.dumps(json.loads(new), separators=(",", ":"), ensure_ascii=False)


def _columns(key: str, definition: Definition) -> Sequence[str]:
    """Return the names of a delivered row's values, in its order (`delivery.model.DeliveredColumns`)."""
    window, key_object = definition.window, json.loads(key)
    keys = tuple(key_object["keys"])
    rest = (*(name for name in definition.row_keys if name not in keys), *definition.columns)
    return (window.start_column, window.end_column, *keys, *rest)


def _values(redactor: Redactor, names: Sequence[str], values: Sequence[Any]) -> list[Any] | None:
    if len(names) != len(values):
        return None  # made by another definition: the meaning of its positions is unknown
    replaced = json.loads(redactor.text(json.dumps(dict(zip(names, values, strict=True))).encode()))
    return [replaced[name] for name in names]
