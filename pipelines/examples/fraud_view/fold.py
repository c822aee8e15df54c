"""Withdrawals of an account that follow each other quickly."""

from datetime import datetime, timedelta

WITHIN = timedelta(minutes=5)
MANY = 3


def fold(state, event):
    """Return the times of the newest withdrawals, and a row for each withdrawal: how many the last five minutes hold."""
    if event["kind"] != "withdrawn":
        return state, []
    now = event["posted_at"]
    times = [datetime.fromisoformat(text) for text in (state["recent"] if state else [])]
    recent = [one for one in times if now - one < WITHIN] + [now]
    row = {"withdrawals": len(recent), "suspicious": len(recent) >= MANY}
    return {"recent": [one.isoformat() for one in recent]}, [row]
