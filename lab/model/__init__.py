"""The protocol model: every protocol of rivertwice as a small machine over an in-memory world, crashed anywhere.

The actors call the decision functions of the product itself (`rules`); only effects are the model's own. One seed is
one schedule: who steps, who dies, who is stopped and wakes later, when clocks jump and records expire.
"""
