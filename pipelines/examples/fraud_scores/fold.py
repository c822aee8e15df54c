"""How many transactions a card had in the five minutes up to each."""

from datetime import datetime, timedelta

LIMIT = 3
MINUTES = 5


def fold(state, event):
    """Return the card's newest times, and one row for the transaction; one exactly five minutes ago counts no more."""
    at = event["at"]
    times = [datetime.fromisoformat(text) for text in (state or {"times": []})["times"]] + [at]
    newest = max(times)
    kept = [time.isoformat() for time in times if time > newest - timedelta(minutes=2 * MINUTES)]
    counted = sum(at - timedelta(minutes=MINUTES) < time <= at for time in times)
    return {"times": kept}, [{"tx": event["tx"], "transactions": counted, "suspicious": counted > LIMIT}]
