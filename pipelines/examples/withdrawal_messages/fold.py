"""A text message for each withdrawal."""


def fold(state, event):
    """Return how many messages an account had, and one row for a withdrawal; nothing for other postings."""
    if event["kind"] != "withdrawn":
        return state, []
    number = (state["sent"] if state else 0) + 1
    return {"sent": number}, [{"message": f"Withdrawal {number}: {event['amount']} from account {event['account_id']}"}]
