"""A user's orders, each with the user's name: what two topics say of one user."""

from decimal import Decimal


def fold(state, event):
    """Return name and orders of a user behind an event, and every order that shows something else now."""
    state = state or {"name": None, "orders": {}}
    return changed_user(state, event) if event["_source"] == "users" else changed_order(state, event)


def changed_user(state, event):
    """Return what is kept and shown behind an event of the topic of users; a deleted user has no name."""
    name = None if event["_deleted"] else event["name"]
    if name == state["name"]:
        return kept(state), []
    orders = sorted((int(order), Decimal(amount)) for order, amount in state["orders"].items())
    return kept({**state, "name": name}), [shown(order, name, amount) for order, amount in orders]


def changed_order(state, event):
    """Return what is kept and shown behind an event of the topic of orders."""
    order, amount = str(event["order_id"]), event["amount"]
    if event["_deleted"]:
        known = state["orders"].get(order)
        orders = {other: amount for other, amount in state["orders"].items() if other != order}
        gone = [] if known is None else [shown(event["order_id"], state["name"], Decimal(known), deleted=True)]
        return kept({**state, "orders": orders}), gone
    if state["orders"].get(order) == str(amount):
        return kept(state), []
    return {**state, "orders": {**state["orders"], order: str(amount)}}, [shown(event["order_id"], state["name"], amount)]


def shown(order, name, amount, *, deleted=False):
    """Return a row of the view."""
    return {"order_id": order, "name": name, "amount": amount, "deleted": deleted}


def kept(state):
    """Return a state; none of a user of whom nothing is known any more."""
    return state if state["orders"] or state["name"] is not None else None
