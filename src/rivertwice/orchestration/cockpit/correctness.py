"""Routes of the heatmap, one number explained, and a selection of windows."""

from __future__ import annotations

from fastapi import APIRouter

router = APIRouter(prefix="/api/p/{name}")
