"""The running count and sum of a category."""

from decimal import Decimal


def fold(state, event):
    """Return what the category has come to with the sale, as its state and as a row."""
    before = state or {"sales": 0, "total": Decimal(0)}
    now = {"sales": before["sales"] + 1, "total": before["total"] + event["amount"]}
    return now, [now]
