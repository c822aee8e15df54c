"""Locations of the project (definitions) and the home (state). Importing this package reads no file and no variable."""

from rivertwice.config.homes import PipelineHome, Tables
from rivertwice.config.kafka_security import KafkaSecurity
from rivertwice.config.places import (
    NAME,
    PIPELINE,
    TOPIC,
    Place,
    below,
    explain_topic,
    is_s3,
    parse_place,
    require_name,
    require_pipeline,
    require_topic,
)
from rivertwice.config.settings import Settings

__all__ = [
    "NAME",
    "PIPELINE",
    "TOPIC",
    "KafkaSecurity",
    "PipelineHome",
    "Place",
    "Settings",
    "Tables",
    "below",
    "explain_topic",
    "is_s3",
    "parse_place",
    "require_name",
    "require_pipeline",
    "require_topic",
]
