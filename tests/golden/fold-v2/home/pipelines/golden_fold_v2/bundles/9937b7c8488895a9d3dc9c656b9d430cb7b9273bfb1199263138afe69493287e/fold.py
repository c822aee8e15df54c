
from decimal import Decimal


def fold(state, event):
    if event["amount"] < 0 and state is not None and state["n"] > 4:
        return None, []  # forgets the key
    state = state or {"n": 0, "total": 0, "mean": None, "last": None, "seen": {}}
    state["n"] += 1
    state["total"] += event["amount"]
    state["mean"] = (Decimal(state["total"]) / state["n"]).quantize(Decimal("0.000001"))
    state["last"] = event["at"]
    state["seen"][event["id"]] = [event["amount"], "é "]
    return state, [{"n": state["n"], "total": state["total"], "mean": state["mean"]}]
