"""The guard of a card: the country of its first charge is its home; one charge abroad passes, and no further one."""

from decimal import Decimal

ALLOWED = 1


def fold(state, event):
    """Return what is known of the card, and whether the charge is accepted."""
    known = state or {"home": event["country"], "abroad": 0, "let_through": Decimal(0)}
    if event["country"] == known["home"]:
        return known, [{"accepted": True, "abroad": known["abroad"], "let_through": known["let_through"]}]
    accepted = known["abroad"] < ALLOWED
    passed = event["amount"] if accepted else Decimal(0)
    known = {**known, "abroad": known["abroad"] + 1, "let_through": known["let_through"] + passed}
    return known, [{"accepted": accepted, "abroad": known["abroad"], "let_through": known["let_through"]}]
