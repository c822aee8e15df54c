"""The object store on S3 with boto3. Only an endpoint that honours `If-None-Match` and `If-Match` is accepted.

If the answer to a conditional write is lost, the client sends the write again, and the second try fails because of the first.
So each such write has a nonce in its metadata, and a writer that gets "taken" checks whether the nonce is its own.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import boto3
from boto3.exceptions import Boto3Error
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from urllib3.exceptions import HTTPError

from rivertwice.core import ServiceError, UnknownOutcomeError, retry
from rivertwice.storage.blobs import Patience, Versioned, is_temporary, require_conditions, require_key

# The boto3 client that stores share, and the meaning of its errors: absent, taken, denied, or unknown.

ABSENT = frozenset({"NoSuchKey", "404", "NotFound"})
TAKEN = frozenset({"PreconditionFailed", "412"})
CONFLICT = frozenset({"ConditionalRequestConflict", "409", "OperationAborted"})
DENIED = frozenset(
    {
        "403",
        "AccessDenied",
        "AllAccessDisabled",
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidAccessKeyId",
        "InvalidToken",
        "RequestExpired",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
    }
)
# botocore neither wraps nor repeats the reading of a refused read's body: if it breaks off, the error is urllib3's own.
UNANSWERED = (BotoCoreError, HTTPError)
DEFAULT_REGION = "us-east-1"


def s3_client(endpoint: str | None = None, patience: Patience | None = None) -> Any:
    """Return a boto3 client; credentials, region and (without `endpoint`) AWS_ENDPOINT_URL come from its own chain.

    Server errors, slow-downs, resets and time-outs are repeated by the client, with backoff.
    """
    session = boto3.session.Session()
    waits = patience or Patience()
    return session.client(
        "s3",
        endpoint_url=endpoint,
        region_name=session.region_name or DEFAULT_REGION,
        config=Config(
            connect_timeout=waits.connect_s,
            read_timeout=waits.read_s,
            retries={"total_max_attempts": waits.attempts, "mode": "standard"},
            max_pool_connections=16,
            request_checksum_calculation="when_required",
        ),
    )


def code_of(error: ClientError) -> str:
    """Return S3's code of an error, such as NoSuchKey."""
    return str(error.response.get("Error", {}).get("Code", ""))


def was_repeated(error: ClientError) -> bool:
    """Say whether the client sent the request before the try that failed with this error."""
    return int(error.response.get("ResponseMetadata", {}).get("RetryAttempts", 0)) > 0


def is_refusal(error: Exception) -> bool:
    """Say whether the store understood a request and refused it: then it certainly changed nothing."""
    if not isinstance(error, ClientError):
        return False
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return 400 <= status < 500 and status != 408


def describe_failure(place: str, doing: str, error: Exception) -> str:
    """Return the message for a person: what failed where, the cause, the consequence, the remedy."""
    if isinstance(error, ClientError) and code_of(error) in DENIED:
        return (
            f"the object store {place} refuses {doing}: {error}; nothing there can be read or written with these credentials "
            "on this prefix; renew them or allow it, then start again: nothing is lost meanwhile, the lag only grows"
        )
    return (
        f"the object store {place} failed at {doing}: {error}; its objects cannot be read or written now; check "
        "RIVERTWICE_SAVEPOINTS, RIVERTWICE_SHARED, AWS_ENDPOINT_URL and the credentials"
    )


@contextmanager
def explained(place: str, doing: str) -> Iterator[None]:
    """Turn boto3's errors into a ServiceError that names place, action and remedy."""
    try:
        yield
    except (ClientError, *UNANSWERED) as error:
        raise ServiceError(describe_failure(place, doing, error)) from error
    except Boto3Error as error:  # an upload's own wrapper around the cause
        cause = error.__cause__ or error.__context__
        shown = cause if isinstance(cause, ClientError) else error
        raise ServiceError(describe_failure(place, doing, shown)) from error


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
        require_conditions(self, "use a store that honours conditional writes (AWS S3, versitygw) or a local folder")

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"

    def _key(self, key: str) -> str:
        return self.prefix + require_key(key)

    def _explained(self, doing: str) -> AbstractContextManager[None]:
        return explained(str(self), doing)

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


# Whether a bucket keeps deleted objects.


def explain_versions(bucket: str) -> str | None:
    """Return in words what a bucket (`s3://NAME`) keeps of replaced and deleted objects; None if it keeps nothing.

    If this host has no permission to ask, the text reports it and does not guess.
    """
    name = urlsplit(bucket).netloc
    end = "expire them with a life-cycle rule (NoncurrentVersionExpiration, AbortIncompleteMultipartUpload), or delete them"
    try:
        status = s3_client().get_bucket_versioning(Bucket=name).get("Status")
    except (BotoCoreError, ClientError) as error:
        return f"{bucket}: earlier versions of its objects, if it keeps any: it could not be asked ({str(error)[:200]}); {end}"
    if status is None:
        return None
    return f"{bucket}: earlier versions of its objects, because its versioning is {status}; {end}"
