"""Send the records of a file to the topic s: python pipelines/orders/produce.py FILE

Fields are named as in pipeline.yaml, and each record gets its event time as its timestamp, as if it had come when it happened.
"""

import json
import sys
from pathlib import Path

from rivertwice.config import Settings
from rivertwice.log.kafka import ensure_topic
from rivertwice.scaffold.produce import send_file

TOPIC, PARTITIONS = "s", 1
EVENT_TIME = "at"
UNIT = None  # of an event time that is a number since 1970
KEY = "user"  # the field that becomes the Kafka key
ZONE = None  # of times that are written without one

settings = Settings.from_env()
ensure_topic(settings, TOPIC, PARTITIONS)
sent = send_file(settings, Path(sys.argv[1]), TOPIC, event_time=EVENT_TIME, unit=UNIT, key=KEY, zone=ZONE)
print(json.dumps({"topic": TOPIC, "sent": sent}))
