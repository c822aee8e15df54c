"""Routes of curves, marks and logs."""

from __future__ import annotations

from fastapi import APIRouter

router = APIRouter(prefix="/api/p/{name}")
