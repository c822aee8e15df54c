"""The object store on S3 through boto3. Only an endpoint that honours `If-None-Match: *` is accepted."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from rivertwice.errors import ConfigError, ServiceError
from rivertwice.store.base import is_temporary, require_key

_ABSENT = {"NoSuchKey", "404", "NotFound"}
_TAKEN = {"PreconditionFailed", "412"}
_CONFLICT = {"ConditionalRequestConflict", "409", "OperationAborted"}
_CONFLICT_TRIES = 8  # two creations met; S3 answers 409 and asks to try again
_DEFAULT_REGION = "us-east-1"


def s3_client(endpoint: str | None = None) -> Any:
    """Return a boto3 client; credentials, region and (without `endpoint`) AWS_ENDPOINT_URL come from its own chain."""
    session = boto3.session.Session()
    return session.client(
        "s3",
        endpoint_url=endpoint,
        region_name=session.region_name or _DEFAULT_REGION,
        config=Config(
            retries={"max_attempts": 5, "mode": "standard"},
            max_pool_connections=16,
            request_checksum_calculation="when_required",
        ),
    )


class S3Store:
    """A `BlobStore` on one prefix of one bucket.

    Raises:
        ConfigError: the endpoint lets a second creation of a key win, so no race could be decided.
        ServiceError: the endpoint does not answer or refuses the credentials.
    """

    def __init__(self, bucket: str, prefix: str = "", *, client: Any | None = None) -> None:
        self.bucket = bucket
        self.prefix = f"{require_key(prefix.strip('/'))}/" if prefix.strip("/") else ""
        self._client = client or s3_client()
        self._probe()

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"

    def _key(self, key: str) -> str:
        return self.prefix + require_key(key)

    @contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (ClientError, BotoCoreError) as error:
            message = (
                f"the object store {self} failed at {doing}: {error}; savepoints there cannot be read or written now; "
                "check RIVERTWICE_SAVEPOINTS, AWS_ENDPOINT_URL and the credentials"
            )
            raise ServiceError(message) from error

    def _probe(self) -> None:
        key = f".probe-{uuid.uuid4().hex}"
        try:
            honoured = self.put_if_absent(key, b"first") and not self.put_if_absent(key, b"second")
            honoured = honoured and self.get(key) == b"first"
        finally:
            self.delete(key)
        if not honoured:
            message = (
                f"the object store {self} ignores If-None-Match: two writers of one savepoint could both win; use a "
                "store that honours conditional writes (AWS S3, versitygw) or a local folder"
            )
            raise ConfigError(message)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create an object; return False if the key is taken."""
        for attempt in range(_CONFLICT_TRIES):
            with self._explained(f"creating {key}"):
                try:
                    self._client.put_object(Bucket=self.bucket, Key=self._key(key), Body=data, IfNoneMatch="*")
                except ClientError as error:
                    code = _code(error)
                    if code in _TAKEN:
                        return False
                    if code not in _CONFLICT or attempt + 1 == _CONFLICT_TRIES:
                        raise
                else:
                    return True
            time.sleep(0.02 * 2**attempt)
        return False

    def put(self, key: str, data: bytes) -> None:
        """Create or replace an object."""
        with self._explained(f"writing {key}"):
            self._client.put_object(Bucket=self.bucket, Key=self._key(key), Body=data)

    def get(self, key: str) -> bytes | None:
        """Return an object's bytes, or None."""
        with self._explained(f"reading {key}"):
            try:
                body = self._client.get_object(Bucket=self.bucket, Key=self._key(key))["Body"]
            except ClientError as error:
                if _code(error) in _ABSENT:
                    return None
                raise
            return bytes(body.read())

    def list(self, prefix: str = "") -> list[str]:
        """Return all keys that start with `prefix`, sorted."""
        found: list[str] = []
        with self._explained(f"listing {prefix or 'everything'}"):
            pages = self._client.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self.bucket, Prefix=self.prefix + prefix):
                found += [entry["Key"][len(self.prefix) :] for entry in page.get("Contents", [])]
        return sorted(key for key in found if not is_temporary(key.rpartition("/")[2]))

    def delete(self, key: str) -> None:
        """Remove an object."""
        with self._explained(f"deleting {key}"):
            self._client.delete_object(Bucket=self.bucket, Key=self._key(key))

    def put_file(self, key: str, path: Path) -> None:
        """Create or replace an object from a local file."""
        with self._explained(f"writing {key}"):
            self._client.upload_file(str(path), self.bucket, self._key(key))

    def get_file(self, key: str, path: Path) -> None:
        """Write an object to a local file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._explained(f"reading {key}"):
            try:
                self._client.download_file(self.bucket, self._key(key), str(path))
            except ClientError as error:
                raise _absent(error, self, key) from error

    def copy(self, source: str, target: str) -> None:
        """Create or replace `target` with the content of `source`, inside the store."""
        with self._explained(f"copying {source} to {target}"):
            try:
                self._client.copy_object(
                    Bucket=self.bucket,
                    Key=self._key(target),
                    CopySource={"Bucket": self.bucket, "Key": self._key(source)},
                )
            except ClientError as error:
                raise _absent(error, self, source) from error


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _absent(error: ClientError, store: S3Store, key: str) -> Exception:
    if _code(error) in _ABSENT:
        return FileNotFoundError(f"{store}{key}")
    same: Exception = error
    return same
