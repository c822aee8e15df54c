"""The name that `rivertwice.core.errors` had in 0.1. It goes with the next release."""

from __future__ import annotations

from rivertwice.core.errors import *  # noqa: F403
