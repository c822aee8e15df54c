"""A card's transactions with its profile: how many in five minutes, and what the model makes of each."""

import math
from datetime import datetime, timedelta

LIMIT = 3
SCORE = 0.9
MINUTES = 5

# A logistic regression. Its weights are part of the definition: a new model is a new version, compared before it serves.
BIAS = -4.0
ABROAD = 3.0  # the card is used in another country than its home
ABOVE_USUAL = 0.8  # for each multiple of the usual amount beyond the first, ten at most
EACH_MORE = 0.3  # for each further transaction of the last five minutes


def fold(state, event):
    """Return what is known of the card, and a row for a transaction; a profile changes what later ones are judged by."""
    state = state or {"home": None, "usual": None, "times": []}
    if event["_source"] == "profiles":
        gone = event["_deleted"]
        return {**state, "home": None if gone else event["home"], "usual": None if gone else event["usual"]}, []
    at = event["at"]
    times = [datetime.fromisoformat(text) for text in state["times"]] + [at]
    newest = max(times)
    kept = [time.isoformat() for time in times if time > newest - timedelta(minutes=2 * MINUTES)]
    counted = sum(at - timedelta(minutes=MINUTES) < time <= at for time in times)
    score = scored(state, event, counted)
    alert = counted > LIMIT or score > SCORE
    return {**state, "times": kept}, [{"tx": event["tx"], "transactions": counted, "score": score, "alert": alert}]


def scored(state, event, counted):
    """Return the model's score, between 0 and 1; of a card without a profile the count alone says something."""
    abroad = state["home"] is not None and event["country"] != state["home"]
    usual = float(state["usual"] or 0)
    above = min(max(float(event["amount"]) / usual - 1, 0.0), 10.0) if usual else 0.0
    weight = BIAS + ABROAD * abroad + ABOVE_USUAL * above + EACH_MORE * (counted - 1)
    return round(1 / (1 + math.exp(-weight)), 6)
