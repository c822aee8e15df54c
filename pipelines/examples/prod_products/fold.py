"""A row of the table, from its change events."""


def fold(state, event):
    """Return the row behind a change; a tombstone behind a delete changes nothing."""
    if event["_deleted"] or event["_op"] == "d":
        return None, [{**state, "deleted": True}] if state else []
    row = {"name": event["name"]}
    return row, [{**row, "deleted": False}]
