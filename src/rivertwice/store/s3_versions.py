"""Whether a bucket keeps deleted objects."""

from __future__ import annotations

from urllib.parse import urlsplit

from botocore.exceptions import BotoCoreError, ClientError

from rivertwice.store.s3_client import s3_client


def explain_kept_versions(bucket: str) -> str | None:
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
    return f"{bucket}: earlier versions of its objects, for its versioning is {status}; {end}"
