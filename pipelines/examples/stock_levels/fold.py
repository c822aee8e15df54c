"""A product's stock: each movement counts once, by its id."""

REMEMBERED = 1000


def fold(state, event):
    """Return the stock behind a movement, and a row with the level; an id that is remembered changes nothing."""
    state = state or {"level": 0, "seen": []}
    if event["id"] in state["seen"]:
        return state, [{"id": event["id"], "counted": False, "level": state["level"]}]
    change = event["pieces"] if event["kind"] == "delivered" else -event["pieces"]
    level = state["level"] + change
    row = {"id": event["id"], "counted": True, "level": level}
    return {"level": level, "seen": [*state["seen"], event["id"]][-REMEMBERED:]}, [row]
