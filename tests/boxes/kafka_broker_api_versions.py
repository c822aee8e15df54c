#!/usr/bin/env python
"""Kafka's script of this name asks a broker what it speaks; so does this, by the client that is here."""

import sys

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

assert sys.argv[1] == "--bootstrap-server"
try:
    found = AdminClient({"bootstrap.servers": sys.argv[2]}).list_topics(timeout=8)
except KafkaException as error:
    sys.exit(str(error))
sys.stdout.write(f"{found.brokers}\n")
