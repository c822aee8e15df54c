"""Routes of alerts, backfills, repairs, and the acts of a person."""

from __future__ import annotations

from fastapi import APIRouter

router = APIRouter(prefix="/api/p/{name}")
