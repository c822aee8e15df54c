"""A product's orders, each at the product's price."""


def fold(state, event):
    """Return price and orders of a product behind an event, and every order that costs something else now."""
    state = state or {"price": None, "orders": {}}
    if event["_source"] == "orders":
        orders = {**state["orders"], str(event["order_id"]): event["quantity"]}
        return {**state, "orders": orders}, [row(event["order_id"], event["quantity"], state["price"])]
    if event["price"] == state["price"]:
        return state, []
    orders = sorted((int(order), quantity) for order, quantity in state["orders"].items())
    return {**state, "price": event["price"]}, [row(order, quantity, event["price"]) for order, quantity in orders]


def row(order, quantity, price):
    """Return an order as it is shown."""
    return {"order_id": order, "quantity": quantity, "price": price, "total": None if price is None else price * quantity}
