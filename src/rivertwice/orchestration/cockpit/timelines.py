"""Routes of timelines, savepoints and versions."""

from __future__ import annotations

from fastapi import APIRouter

router = APIRouter(prefix="/api/p/{name}")
