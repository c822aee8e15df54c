"""A cart: item to quantity."""


def fold(state, event):
    """Return the cart behind an event, and what lies in it; no row if nothing changed."""
    before = state["items"] if state else {}
    after = changed(before, event["kind"], event["item"], event["quantity"])
    if after == before:
        return state, []
    listed = ", ".join(item if count == 1 else f"{item} x{count}" for item, count in sorted(after.items()))
    return {"items": after}, [{"items": listed, "pieces": sum(after.values())}]


def changed(items, kind, item, quantity):
    """Return the items after an event. A quantity that an event does not name is one; of none, the item is gone."""
    count = 1 if quantity is None else quantity
    if kind == "added":
        count += items.get(item, 0)
    elif kind == "removed":
        count = 0
    elif item not in items:
        return items
    rest = {name: held for name, held in items.items() if name != item}
    return {**rest, item: count} if count else rest
