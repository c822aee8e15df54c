"""The object store on S3 with boto3. Only an endpoint that honours `If-None-Match` and `If-Match` is accepted.

If the answer to a conditional write is lost, the client sends the write again, and the second try fails because of the first.
So each such write has a nonce in its metadata, and a writer that gets "taken" checks whether the nonce is its own.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

from botocore.exceptions import BotoCoreError, ClientError

from rivertwice.errors import ConfigError, ServiceError, UnknownOutcomeError
from rivertwice.retry import retry
from rivertwice.store.base import Versioned, is_temporary, require_key
from rivertwice.store.s3_client import (
    ABSENT,
    CONFLICT,
    TAKEN,
    UNANSWERED,
    code_of,
    describe_failure,
    explained,
    is_refusal,
    s3_client,
    was_repeated,
)

__all__ = ["S3Store", "s3_client"]

_CONFLICT_TRIES = 8  # two creations at once; S3 answers 409 and asks to try again
_BODY_TRIES = 4  # the client repeats neither a body that breaks off nor the check after a lost answer
_NONCE = "rivertwice-nonce"
T = TypeVar("T")


class S3Store:
    """A `BlobStore` on one prefix of one bucket.

    Raises:
        ConfigError: the endpoint accepts a second creation or a stale replacement of a key: no race could be decided.
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

    def _explained(self, doing: str) -> AbstractContextManager[None]:
        return explained(str(self), doing)

    def _probe(self) -> None:
        broken = retry(_may_pass, tries=_BODY_TRIES, first_wait_s=0.1)(self._broken_condition)
        if broken:
            message = (
                f"the object store {self} ignores {broken}: two writers of one savepoint, table or lease could both win; "
                "use a store that honours conditional writes (AWS S3, versitygw) or a local folder"
            )
            raise ConfigError(message)

    def _broken_condition(self) -> str | None:
        """Return the condition that the endpoint ignores, tried on a probe object; None if it honours both."""
        key = f".probe-{uuid.uuid4().hex}"
        try:
            created = self.put_if_absent(key, b"first") and not self.put_if_absent(key, b"second")
            current = self.get_versioned(key)
            if not created or current is None or current.data != b"first":
                return "If-None-Match"
            if not self.put_if_version(key, b"third", current.version):
                return "If-Match"
            return "If-Match" if self.put_if_version(key, b"fourth", current.version) else None
        finally:
            self.delete(key)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create an object; return False if the key is taken."""
        return self._put_on_condition(key, data, f"creating {key}", IfNoneMatch="*")

    def put_if_version(self, key: str, data: bytes, version: str) -> bool:
        """Replace an object that still has `version`; return False if it has another or is gone."""
        return self._put_on_condition(key, data, f"replacing {key}", IfMatch=version)

    def _put_on_condition(self, key: str, data: bytes, doing: str, **condition: str) -> bool:
        nonce = uuid.uuid4().hex
        repeated = False

        def put() -> None:
            nonlocal repeated
            try:
                self._client.put_object(
                    Bucket=self.bucket, Key=self._key(key), Body=data, Metadata={_NONCE: nonce}, **condition
                )
            except (ClientError, BotoCoreError) as error:
                repeated = repeated or not isinstance(error, ClientError) or was_repeated(error)
                raise

        try:
            retry(_is_conflict, tries=_CONFLICT_TRIES, first_wait_s=0.02)(put)
        except (ClientError, BotoCoreError) as error:
            code = code_of(error) if isinstance(error, ClientError) else ""
            if code in TAKEN or (code in ABSENT and "IfMatch" in condition):
                return repeated and self._wrote(key, nonce, doing, error)
            return self._wrote_after_failure(key, nonce, doing, error, repeated=repeated)
        return True

    def _wrote_after_failure(self, key: str, nonce: str, doing: str, error: Exception, *, repeated: bool) -> bool:
        if is_refusal(error) and not repeated:
            with self._explained(doing):
                raise error
        if self._wrote(key, nonce, doing, error):
            return True
        # An absent object does not mean a refusal: a request on its way may still arrive.
        raise UnknownOutcomeError(self._unknown(doing, error)) from error

    def _wrote(self, key: str, nonce: str, doing: str, cause: Exception) -> bool:
        """Say whether the stored object was written by this call; retried while the server answers with errors."""
        try:
            asking = retry(_may_come, tries=_BODY_TRIES, first_wait_s=0.04)
            head = asking(self._client.head_object, Bucket=self.bucket, Key=self._key(key))
        except (ClientError, BotoCoreError) as error:
            if isinstance(error, ClientError) and code_of(error) in ABSENT:
                return False
            raise UnknownOutcomeError(self._unknown(doing, cause)) from error
        return bool(head.get("Metadata", {}).get(_NONCE) == nonce)

    def _unknown(self, doing: str, error: Exception) -> str:
        return (
            f"{describe_failure(str(self), doing, error)}; whether it was done is not known: look before repeating it"
        )

    def put(self, key: str, data: bytes) -> None:
        """Create or replace an object."""
        with self._explained(f"writing {key}"):
            self._client.put_object(Bucket=self.bucket, Key=self._key(key), Body=data)

    def get(self, key: str) -> bytes | None:
        """Return an object's bytes, or None."""
        versioned = self.get_versioned(key)
        return None if versioned is None else versioned.data

    def get_versioned(self, key: str) -> Versioned | None:
        """Return an object's bytes and ETag, or None."""

        def read() -> Versioned | None:
            try:
                answer = self._client.get_object(Bucket=self.bucket, Key=self._key(key))
                return Versioned(bytes(answer["Body"].read()), str(answer["ETag"]))
            except ClientError as error:
                if code_of(error) in ABSENT:
                    return None
                raise

        with self._explained(f"reading {key}"):
            return _whole(read)

    def list(self, prefix: str = "") -> list[str]:
        """Return all keys that start with `prefix`, sorted."""
        keys: list[str] = []
        with self._explained(f"listing {prefix or 'everything'}"):
            pages = self._client.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self.bucket, Prefix=self.prefix + prefix):
                keys += [entry["Key"][len(self.prefix) :] for entry in page.get("Contents", [])]
        return sorted(key for key in keys if not is_temporary(key.rpartition("/")[2]))

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
                _whole(lambda: self._client.download_file(self.bucket, self._key(key), str(path)))
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


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, UnknownOutcomeError | ServiceError)


def _is_conflict(error: BaseException) -> bool:
    return isinstance(error, ClientError) and code_of(error) in CONFLICT


def _may_come(error: BaseException) -> bool:
    """Say whether the next try may succeed; not if the store refuses the request, or does not have the object."""
    return isinstance(error, ClientError | BotoCoreError) and not is_refusal(error)


def _whole(read: Callable[[], T]) -> T:
    """Read again if an answer breaks off; the client itself repeats only a failure before the body."""
    return retry(lambda error: isinstance(error, UNANSWERED), tries=_BODY_TRIES, first_wait_s=0.05)(read)


def _absent(error: ClientError, store: S3Store, key: str) -> Exception:
    if code_of(error) in ABSENT:
        return FileNotFoundError(f"{store}{key}")
    same: Exception = error
    return same
