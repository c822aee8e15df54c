"""The object store on Azure (Blob Storage, ADLS Gen2), by obstore, which finds what delta-rs finds.

Both are made of Rust's `object_store`, and read credentials from the same variables of the environment, `AZURE_...` as
AZURE_STORAGE_ACCOUNT_NAME and _KEY, or the identity of the host. So a table and the objects beside it are read by the same login. Seen with obstore 0.12.1 and deltalake 1.6.6: tests/contracts.

As on S3, the answer to a conditional write may be lost, and the client sends it again: each has a nonce in its metadata.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import AzureStore

from rivertwice.core import ServiceError, UnknownOutcomeError, retry
from rivertwice.storage.blobs import Patience, Versioned, is_temporary, require_conditions, require_key

if TYPE_CHECKING:
    from obstore.store import BackoffConfig, ClientConfig

_LOGIN = {
    "abfss": "AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN or AZURE_CLIENT_ID",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN or AZURE_CLIENT_ID",
}
_DENIED = (PermissionDeniedError, UnauthenticatedError)
_NONCE = "rivertwice_nonce"  # Azure takes names of metadata that are identifiers, so no hyphen
_TRIES = 4
_PART = 8 << 20


def cloud_options() -> dict[str, str]:
    """Return what obstore and delta-rs need beside the variables that they read themselves, where a server is an emulator."""
    is_plain = os.environ.get("AZURE_STORAGE_ENDPOINT", "").startswith("http://")
    return {"allow_http": "true"} if is_plain else {}


def explain_cloud(place: str, doing: str, error: BaseException) -> str:
    """Return the message for a person: what failed where, the cause, the consequence, the remedy. Pure."""
    cause = str(error).partition("\n")[0][:600]
    login = _LOGIN[place.partition("://")[0]]
    if isinstance(error, _DENIED):
        return (
            f"the object store {place} refuses {doing}: {cause}; nothing there can be read or written with these credentials "
            f"on this prefix; renew them or allow it ({login}), then start again: nothing is lost meanwhile, the lag only grows"
        )
    return (
        f"the object store {place} failed at {doing}: {cause}; its objects cannot be read or written now; check "
        f"RIVERTWICE_SAVEPOINTS, RIVERTWICE_SHARED and the credentials ({login})"
    )


class CloudStore:
    """A `BlobStore` on one prefix of a container (`abfss://`, `az://`).

    Raises:
        ConfigError: the server accepts a second creation or a stale replacement of a key: no race could be decided.
        ServiceError: the server does not answer or refuses the credentials.
    """

    def __init__(self, place: str, patience: Patience) -> None:
        self.place = f"{place.rstrip('/')}/"
        client: ClientConfig = {
            "timeout": timedelta(seconds=patience.read_s),
            "connect_timeout": timedelta(seconds=patience.connect_s),
        }
        if cloud_options():
            client["allow_http"] = True
        waits: BackoffConfig = {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=5)}
        self._store = AzureStore.from_url(
            self.place.rstrip("/"),
            client_options=client,
            retry_config={"max_retries": patience.attempts - 1, "backoff": waits},
        )
        require_conditions(self, "use a server that honours conditional writes, as the cloud's own does")

    def __str__(self) -> str:
        return self.place

    @contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except (BaseError, OSError) as error:
            raise ServiceError(explain_cloud(self.place, doing, error)) from error

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create an object; return False if the key is taken."""
        return self._put_on_condition(key, data, f"creating {key}", "create")

    def put_if_version(self, key: str, data: bytes, version: str) -> bool:
        """Replace an object that still has `version`; return False if it has another or is gone."""
        return self._put_on_condition(key, data, f"replacing {key}", {"e_tag": version})

    def _put_on_condition(self, key: str, data: bytes, doing: str, mode: Any) -> bool:
        nonce = uuid.uuid4().hex
        try:
            self._store.put(require_key(key), data, mode=mode, attributes={_NONCE: nonce}, use_multipart=False)
        except (AlreadyExistsError, PreconditionError) as error:
            return self._wrote(key, nonce, doing, error)  # the client does not say whether it sent the write before
        except FileNotFoundError as error:
            if mode != "create":
                return False
            raise ServiceError(explain_cloud(self.place, doing, error)) from error  # there is no such container
        except _DENIED as error:
            raise ServiceError(explain_cloud(self.place, doing, error)) from error
        except (BaseError, OSError) as error:
            if self._wrote(key, nonce, doing, error):
                return True
            raise UnknownOutcomeError(self._unknown(doing, error)) from error
        return True

    def _wrote(self, key: str, nonce: str, doing: str, cause: Exception) -> bool:
        """Say whether the stored object was written by this call."""
        try:
            found = self._store.get(key).attributes
        except FileNotFoundError:
            return False
        except (BaseError, OSError) as error:
            raise UnknownOutcomeError(self._unknown(doing, cause)) from error
        return bool(found.get(_NONCE) == nonce)

    def _unknown(self, doing: str, error: Exception) -> str:
        return f"{explain_cloud(self.place, doing, error)}; whether it was done is not known: look before repeating it"

    def put(self, key: str, data: bytes) -> None:
        """Create or replace an object."""
        with self._explained(f"writing {key}"):
            self._store.put(require_key(key), data, use_multipart=False)

    def get(self, key: str) -> bytes | None:
        """Return an object's bytes, or None."""
        versioned = self.get_versioned(key)
        return None if versioned is None else versioned.data

    def get_versioned(self, key: str) -> Versioned | None:
        """Return an object's bytes and ETag, or None."""

        def read() -> Versioned | None:
            try:
                found = self._store.get(require_key(key))
                meta = found.meta
                return Versioned(bytes(found.bytes()), str(meta["e_tag"]))
            except FileNotFoundError:
                return None

        with self._explained(f"reading {key}"):
            return retry(_may_come, tries=_TRIES, first_wait_s=0.05)(read)

    def list(self, prefix: str = "") -> list[str]:
        """Return all keys that start with `prefix`, sorted. The client lists folders, so what starts otherwise is left out here."""
        folder = prefix.rpartition("/")[0]
        with self._explained(f"listing {prefix or 'everything'}"):
            keys = [str(entry["path"]) for page in self._store.list(folder or None) for entry in page]
        return sorted(key for key in keys if key.startswith(prefix) and not is_temporary(key.rpartition("/")[2]))

    def delete(self, key: str) -> None:
        """Remove an object."""
        with self._explained(f"deleting {key}"), contextlib.suppress(FileNotFoundError):
            self._store.delete(require_key(key))

    def put_file(self, key: str, path: Path) -> None:
        """Create or replace an object from a local file, in parts if it is large."""
        with self._explained(f"writing {key}"):
            self._store.put(require_key(key), path, chunk_size=_PART)

    def get_file(self, key: str, path: Path) -> None:
        """Write an object to a local file, which appears whole."""
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")

        def fetch() -> None:
            found = self._store.get(require_key(key))
            with part.open("wb") as file:
                for block in found.stream(min_chunk_size=_PART):
                    file.write(block)
            part.replace(path)

        try:
            with self._explained(f"reading {key}"):
                retry(_may_come, tries=_TRIES, first_wait_s=0.05)(fetch)
        except FileNotFoundError as error:
            message = f"{self}{key}"
            raise FileNotFoundError(message) from error
        finally:
            part.unlink(missing_ok=True)

    def copy(self, source: str, target: str) -> None:
        """Create or replace `target` with the content of `source`, inside the store."""
        try:
            with self._explained(f"copying {source} to {target}"):
                self._store.copy(require_key(source), require_key(target))
        except FileNotFoundError as error:
            message = f"{self}{source}"
            raise FileNotFoundError(message) from error


def _may_come(error: BaseException) -> bool:
    """Say whether the next try may succeed; not if the store refuses, or does not have the object."""
    return isinstance(error, BaseError | OSError) and not isinstance(error, (*_DENIED, FileNotFoundError))


def explain_kept(place: str) -> str:
    """Return in words what may be kept of replaced and deleted objects of a container, which is not asked for here."""
    return f"{place}: earlier versions, snapshots and soft-deleted blobs, if its account keeps any: `az storage account blob-service-properties show` says so; delete them, or end the retention"
