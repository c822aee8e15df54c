"""The plugin as a file of a plugin folder gives it: nothing where the installed package gives it to Airflow itself.

Airflow takes a plugin that it meets a second time for an error, and shows it.
"""

from __future__ import annotations

from importlib.metadata import entry_points

if not entry_points(group="airflow.plugins", name="rivertwice"):
    from rivertwice.airflow.page import RivertwicePlugin as RivertwicePlugin
