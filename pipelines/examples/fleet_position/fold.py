"""Where an aircraft is, from its departures and arrivals."""


def fold(state, event):
    """Return the aircraft behind a movement, and one row that says where it is; an arrival of another leg than its last changes nothing."""
    state = state or {"leg": None, "legs": 0}
    if event["kind"] == "departed":
        state = {"leg": event["leg"], "legs": state["legs"] + 1}
        return state, [{"status": "in the air to", "airport": event["dest"], **state}]
    if event["leg"] != state["leg"]:
        return state, []
    return state, [{"status": "at", "airport": event["dest"], **state}]
