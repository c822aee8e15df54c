"""Answers that cost little if nothing changed: a strong ETag over the content, and 304 to whoever has it already.

Content holds instants and no ages, so it stays the same while nothing happens.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from fastapi import Request
from fastapi.responses import Response

_HEADERS = {"Cache-Control": "no-store", "Vary": "Authorization, Cookie"}


def answer(request: Request, content: Any) -> Response:
    """Return content as JSON, or 304 if the one who asks has it.

    Args:
        request: its header `If-None-Match` says what is already there.
        content: plain values; instants as text.
    """
    body = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = _HEADERS | {"ETag": tag}
    if tag in _tags(request.headers.get("If-None-Match", "")):
        return Response(status_code=304, headers=headers)
    return Response(body, media_type="application/json", headers=headers)


def _tags(header: str) -> set[str]:
    """Return the tags of a header; a weak one (a proxy that compresses makes it so) names the same content."""
    return {part.strip().removeprefix("W/") for part in header.split(",")}
