"""The object store on Google Cloud Storage or Azure (Blob Storage, ADLS Gen2), by obstore, which finds what delta-rs finds.

Both are made of Rust's `object_store`, and read credentials from the same variables of the environment, GOOGLE_APPLICATION_CREDENTIALS
or AZURE_STORAGE_ACCOUNT_NAME and _KEY, or the identity of the host. So a table and the objects beside it are read by the same login. Seen with obstore 0.12.1 and deltalake 1.6.6: tests/contracts.

As on S3, the answer to a conditional write may be lost, and the client sends it again: each has a nonce in its metadata.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.fs as pafs
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import AzureStore, GCSStore

from rivertwice.core import Place, ServiceError, UnknownOutcomeError, retry
from rivertwice.storage.blobs import Patience, Versioned, is_temporary, require_conditions, require_key

if TYPE_CHECKING:
    from obstore.store import BackoffConfig, ClientConfig, GCSConfig, RetryConfig

_LOGIN = {
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "abfss": "AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN or AZURE_CLIENT_ID",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN or AZURE_CLIENT_ID",
}
_DENIED = (PermissionDeniedError, UnauthenticatedError)
_NONCE = "rivertwice_nonce"  # Azure takes names of metadata that are identifiers, so no hyphen
_TRIES = 4
_PART = 8 << 20


def cloud_options(place: Place) -> dict[str, str]:
    """Return what obstore and delta-rs need beside the variables that they read themselves: where an emulator is."""
    address = emulator_of(str(place))
    if not str(place).startswith("gs://"):
        return {"allow_http": "true"} if (address or "").startswith("http://") else {}
    if not address:
        return {}
    base = (
        address if "://" in address else f"http://{address}"
    )  # as Google's own clients take it; no login is asked for
    key = {"gcs_base_url": base, "disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
    return {"allow_http": "true", "google_service_account_key": json.dumps(key)}


def emulator_of(place: str) -> str | None:
    """Return the address of another server than the cloud's, if one is set."""
    return os.environ.get("STORAGE_EMULATOR_HOST" if place.startswith("gs://") else "AZURE_STORAGE_ENDPOINT")


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


@contextmanager
def explained(place: str, doing: str) -> Iterator[None]:
    """Turn the client's errors into a ServiceError that names place, action and remedy; an absent object stays FileNotFoundError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (BaseError, OSError) as error:
        raise ServiceError(explain_cloud(place, doing, error)) from error


def _connect(place: str, patience: Patience) -> GCSStore | AzureStore:
    options = cloud_options(place)
    client: ClientConfig = {
        "timeout": timedelta(seconds=patience.read_s),
        "connect_timeout": timedelta(seconds=patience.connect_s),
    }
    if options:
        client["allow_http"] = True
    waits: BackoffConfig = {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=5)}
    again: RetryConfig = {"max_retries": patience.attempts - 1, "backoff": waits}
    key = options.get("google_service_account_key")
    login: GCSConfig = {} if key is None else {"service_account_key": key}
    with explained(place, "reading its login"):
        if place.startswith("gs://"):
            return GCSStore.from_url(place.rstrip("/"), config=login, client_options=client, retry_config=again)
        return AzureStore.from_url(place.rstrip("/"), client_options=client, retry_config=again)


class _File(io.RawIOBase):
    """An object that is read in ranges."""

    def __init__(self, store: GCSStore | AzureStore, place: str, path: str) -> None:
        self._store, self._place, self._path, self._at = store, place, path, 0
        with explained(place, f"reading {path}"):
            self._size = int(store.head(path)["size"])

    def readable(self) -> bool:
        """Say yes."""
        return True

    def seekable(self) -> bool:
        """Say yes."""
        return True

    def tell(self) -> int:
        """Return where the next read begins."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Begin the next read elsewhere."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read a range, which is read again if its answer breaks off."""
        length = max(0, min(len(buffer), self._size - self._at))
        if length:
            again = retry(_may_come, tries=_TRIES, first_wait_s=0.05)
            with explained(self._place, f"reading {self._path}"):
                buffer[:length] = again(self._store.get_range, self._path, start=self._at, length=length)
            self._at += length
        return length


class _Files:
    """What pyarrow asks of a file system that it reads from, relative to a place."""

    protocol = "obstore"

    def __init__(self, place: str) -> None:
        self._store, self._place = _connect(place, Patience()), place

    def isfile(self, _path: str) -> bool:
        """Say yes: a dataset names files that its table's log has."""
        return True

    def info(self, path: str) -> dict[str, Any]:
        """Return kind and size."""
        with explained(self._place, f"reading {path}"):
            return {"name": path, "type": "file", "size": self._store.head(path)["size"]}

    def open(self, path: str, mode: str = "rb") -> io.RawIOBase:
        """Return a file to read from."""
        return _File(self._store, self._place, path)


def file_system(place: str) -> pafs.FileSystem:
    """Return the files below a place, to be read by pyarrow; other threads run meanwhile.

    Not `deltalake.fs.DeltaStorageHandler`, which holds Python's lock while it waits for the network (seen with deltalake 1.6.6), and
    a lease's renewal must not wait for it.
    """
    return pafs.PyFileSystem(pafs.FSSpecHandler(_Files(place)))


class CloudStore:
    """A `BlobStore` on one prefix of a bucket (`gs://`) or of a container (`abfss://`, `az://`).

    Raises:
        ConfigError: the server accepts a second creation or a stale replacement of a key: no race could be decided.
        ServiceError: the server does not answer or refuses the credentials.
    """

    def __init__(self, place: str, patience: Patience) -> None:
        self.place = f"{place.rstrip('/')}/"
        self._store = _connect(place, patience)
        require_conditions(self, "use a server that honours conditional writes, as the cloud's own does")

    def __str__(self) -> str:
        return self.place

    def _explained(self, doing: str) -> AbstractContextManager[None]:
        return explained(self.place, doing)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create an object; return False if the key is taken."""
        return self._put_on_condition(key, data, f"creating {key}", "create")

    def put_if_version(self, key: str, data: bytes, version: str) -> bool:
        """Replace an object that still has `version`; return False if it has another or is gone."""
        return self._put_on_condition(key, data, f"replacing {key}", {"e_tag": version, "version": version})

    def _put_on_condition(self, key: str, data: bytes, doing: str, mode: Any) -> bool:
        nonce = uuid.uuid4().hex
        try:
            self._store.put(require_key(key), data, mode=mode, attributes={_NONCE: nonce}, use_multipart=False)
        except (AlreadyExistsError, PreconditionError) as error:
            return self._wrote(key, nonce, doing, error)  # the client does not say whether it sent the write before
        except FileNotFoundError as error:
            if mode != "create":
                return False
            raise ServiceError(
                explain_cloud(self.place, doing, error)
            ) from error  # there is no such bucket or container
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
        """Return an object's bytes and its generation (Google) or ETag (Azure), or None."""

        def read() -> Versioned | None:
            try:
                found = self._store.get(require_key(key))
                meta = found.meta
                return Versioned(bytes(found.bytes()), str(meta["version"] or meta["e_tag"]))
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
    """Return in words what may be kept of replaced and deleted objects of a bucket or container, which is not asked for here."""
    what, shows = "blobs, if its account keeps any", "az storage account blob-service-properties show"
    if place.startswith("gs://"):
        what, shows = "objects, if it keeps any", f"gcloud storage buckets describe {place}"
    return f"{place}: earlier versions, snapshots and soft-deleted {what}: `{shows}` says so; delete them, or end the retention"
