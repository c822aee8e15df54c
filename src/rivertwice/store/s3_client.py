"""The boto3 client that stores share, and the meaning of its errors: absent, taken, denied, or unknown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import boto3
from boto3.exceptions import Boto3Error
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from urllib3.exceptions import HTTPError

from rivertwice.errors import ServiceError

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


@dataclass(frozen=True)
class Patience:
    """How long a client waits for one answer, and how often it asks in total."""

    connect_s: float = 5.0
    read_s: float = 30.0
    attempts: int = 5


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
