"""Which checkpoints hold a value in the files of their state, live ones and the copies in savepoints.

Spark keeps state in RocksDB. A version is a changelog (`V_ID.changelog`: blocks of LZ4 as `net.jpountz.lz4.LZ4BlockOutputStream` writes
them) or a snapshot: `V_ID.zip` with RocksDB's own records and `SSTs/*.sst` (RocksDB's block-based tables, format 5, as Spark sets it).
State that Spark removed stays in these files until RocksDB merges them: a removed key is written once more.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

import pyarrow as pa

from rivertwice.config import PipelineHome
from rivertwice.privacy.redact import Value
from rivertwice.privacy.spellings import spellings
from rivertwice.savepoint.catalogue import Savepoint, list_savepoints

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
        data: its bytes.

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
