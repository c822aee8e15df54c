"""An account: what may be posted to it, and its balance afterwards."""

from decimal import Decimal


def fold(state, event):
    """Return the account behind an event, and one row that says what became of it."""
    state = state or {"balance": Decimal(0), "postings": 0}
    amount = event["amount"] or Decimal(0)
    reason = refusal(state["balance"], event["kind"], amount)
    if reason is None:
        change = -amount if event["kind"] == "withdrawn" else amount
        state = {"balance": state["balance"] + change, "postings": state["postings"] + 1}
    row = {"kind": event["kind"], "amount": event["amount"], "accepted": reason is None, "reason": reason}
    return state, [{**row, "balance": state["balance"]}]


def refusal(balance, kind, amount):
    """Return why a posting is refused, or None."""
    if kind == "deposited" and amount <= 0:
        return "a deposit must be positive"
    if kind == "withdrawn" and amount <= 0:
        return "a withdrawal must be positive"
    if kind == "withdrawn" and amount > balance:
        return "overdraft"
    return None
