"""Whole objects, leases and Delta tables, in a folder or in an object store."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rivertwice.storage.blobs import BlobStore, files_below, is_temporary, require_key
    from rivertwice.storage.home_identity import describe_copy, home_id
    from rivertwice.storage.lake import LakeFile, LakeSnapshot
    from rivertwice.storage.lease_terms import Terms
    from rivertwice.storage.leases import StillHeld, StoreClaim, Watch, shared_lock, take_claim
    from rivertwice.storage.local import (
        encode_json,
        put_json_if_absent,
        read_json,
        replace_bytes,
        replace_json,
        sync_path,
    )
    from rivertwice.storage.log_files import LogFile
    from rivertwice.storage.places import RecordStore, explain_kept_versions, open_store
    from rivertwice.storage.remembered import Remembered
    from rivertwice.storage.snapshot import Snapshot
    from rivertwice.storage.sql import Where
    from rivertwice.storage.table import NewFile, Table, TableChange
    from rivertwice.storage.table_care import TableCare, TableShape
    from rivertwice.storage.table_files import DataFile, TableFiles, sorted_rows
    from rivertwice.storage.table_log import LogFingerprint, TornEntry, check_size
else:
    from rivertwice.core.face import lazy_names

    __getattr__ = lazy_names(__name__)
