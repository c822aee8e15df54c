"""A row of a table, from its change events."""


def fold(state, event):
    """Return the row behind a change; a delete of what is gone already (a tombstone behind it) is no change."""
    if event["_deleted"] or event["_op"] == "d":
        return None, [{"name": state["name"], "version": state["version"], "deleted": True}] if state else []
    version = state["version"] + 1 if state else 1
    row = {"name": event["name"], "version": version}
    return row, [{**row, "deleted": False}]
