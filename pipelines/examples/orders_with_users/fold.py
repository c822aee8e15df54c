"""A user's orders, each with the user's name."""

from decimal import Decimal


def fold(state, event):
    """Return name and orders of a user behind an event, and every order that now shows something else."""
    state = state or {"name": None, "orders": {}}
    if event["kind"] == "order":
        orders = {**state["orders"], str(event["order_id"]): str(event["amount"])}
        return {**state, "orders": orders}, [row(event["order_id"], state["name"], event["amount"])]
    if event["name"] == state["name"]:
        return state, []
    refreshed = [row(int(order), event["name"], Decimal(amount)) for order, amount in sorted(state["orders"].items())]
    return {**state, "name": event["name"]}, refreshed


def row(order, name, amount):
    """Return an order as it is shown."""
    return {"order_id": order, "name": name, "amount": amount}
