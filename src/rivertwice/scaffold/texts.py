"""The files around a definition: settings, suites' page, compose, CI, `README.md`, `produce.py`. Pure."""

from __future__ import annotations

import json

from rivertwice import __version__
from rivertwice.scaffold.guess import Guess

KAFKA_IMAGE = "apache/kafka:4.3.1"
SETTINGS = """\
# Settings of this project. Each is also a variable of the environment, RIVERTWICE_ and the name in capitals, which wins.
# No secret belongs into this file: the password of Kafka comes from RIVERTWICE_KAFKA_PASSWORD, or from a file named below.

# Kafka. Without it commands use the embedded broker that `rivertwice up` starts; `docker compose up -d` starts one at this address.
# bootstrap: 127.0.0.1:9092

# kafka:
#   protocol: SASL_SSL # or PLAINTEXT, SSL, SASL_PLAINTEXT
#   mechanism: SCRAM-SHA-512 # or PLAIN, SCRAM-SHA-256, OAUTHBEARER, AWS_MSK_IAM
#   username: streams # with OAUTHBEARER the client's id
#   password_file: /run/secrets/kafka # with OAUTHBEARER the client's secret
#   token_endpoint: https://login.example.com/oauth2/token # of OAUTHBEARER
#   scope: kafka # of OAUTHBEARER
#   extensions: logicalCluster=lkc-1,identityPoolId=pool-1 # of OAUTHBEARER
#   region: eu-central-1 # of AWS_MSK_IAM
#   ca: certificates/ca.pem
#   certificate: certificates/client.pem

# kafka_conn_id: kafka_prod # Airflow's connection that tasks of DAGs read Kafka's address and login from, in place of the above
# aws_conn_id: lake # the same for S3
# spark_master: local[*] # or spark://HOST:7077
# home: .rivertwice # folder of all state
# shared: s3://BUCKET/PREFIX # place of all data that outlives a host
# savepoints: s3://BUCKET/PREFIX
# leases: s3://BUCKET/PREFIX # place of the leases of streams, if it is another one
# verdicts_kept: 90 days
# metrics: 127.0.0.1:9464 # where the agent serves its figures for Prometheus
# downloads: .build # folder of Java and of jars that `rivertwice setup` downloads; default: a cache of the user
# alerts: alerts.yaml # routes of alerts
"""
EXPECTATIONS = """\
# What these suites gate

`rivertwice reconcile` judges its results by them (Great Expectations, JSON). They are copies of those that rivertwice brings along,
and count instead of them: change them for this project, or delete both to use those of the installed version.

| file | judges | gates |
|---|---|---|
| `verdicts.json` | for each window, how many rows have each verdict | a `critical` expectation that fails makes the reconcile fail (exit 3): a DEFECT, or a difference without a cause |
| `balance.json` | for each partition: read = emitted + open + late + dead + excluded | likewise; a late share above `late.alert_share` is a `warning`, which is reported and does not fail |
| `NAME/windows.json` | what the windows of pipeline NAME serve, your own expectations of the data | `critical` fails the reconcile, `warning` is reported, `info` is recorded |
| `NAME/corrections.json` | what a backfill of NAME would publish | `critical` keeps it from being published |

`rivertwice lint NAME` checks the last two, `rivertwice quality NAME` shows what they found. docs/howto-quality.md of rivertwice has all of it.
"""
GITIGNORE = """\
.rivertwice/
.build/
.venv/
metastore_db/
derby.log
spark-warehouse/
__pycache__/
"""
COMPOSE = f"""\
# An own broker for this project, on loopback: `docker compose up -d`, then write `bootstrap: 127.0.0.1:9092` into rivertwice.yaml.
# `rivertwice up` starts an embedded broker instead, without Docker. Agent and Airflow run from the installed package.
services:
  kafka:
    image: {KAFKA_IMAGE}
    restart: unless-stopped
    ports: ["127.0.0.1:9092:9092"]
    environment:
      KAFKA_NODE_ID: "1"
      KAFKA_PROCESS_ROLES: broker,controller
      KAFKA_CONTROLLER_QUORUM_VOTERS: 1@localhost:9093
      KAFKA_LISTENERS: PLAINTEXT://:9092,CONTROLLER://:9093
      KAFKA_ADVERTISED_LISTENERS: PLAINTEXT://127.0.0.1:9092
      KAFKA_CONTROLLER_LISTENER_NAMES: CONTROLLER
      KAFKA_LISTENER_SECURITY_PROTOCOL_MAP: PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
      KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR: "1"
      KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR: "1"
      KAFKA_TRANSACTION_STATE_LOG_MIN_ISR: "1"
      KAFKA_AUTO_CREATE_TOPICS_ENABLE: "false"
      KAFKA_LOG_RETENTION_MS: "-1" # records are kept: a recompute reads them again
      KAFKA_LOG_DIRS: /var/lib/kafka/data
    volumes:
      - kafka:/var/lib/kafka/data
    healthcheck:
      test: ["CMD", "/opt/kafka/bin/kafka-broker-api-versions.sh", "--bootstrap-server", "localhost:9092"]
      interval: 10s
      timeout: 10s
      retries: 12

volumes:
  kafka:
"""
CI = f"""\
# Definitions are checked and their cases run on every change: no Kafka is needed.
name: rivertwice
on: [push, pull_request]

jobs:
  definitions:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with: {{python-version: "3.11"}}
      - run: pip install "rivertwice=={__version__}"
      - run: rivertwice setup
      - run: rivertwice lint
      - run: rivertwice test
"""


def render_readme(guess: Guess | None, *, has_sample: bool = False) -> str:
    """Return the text of `README.md`: the next commands."""
    if guess is None:
        return (
            "# A project of rivertwice\n\nIt has no pipeline yet. Guess one from a topic or a file of sample records, or take generated ones:\n\n"
            "```sh\nrivertwice init NAME --from-topic TOPIC\nrivertwice init NAME --from-file FILE\nrivertwice init --sample\n```\n"
        )
    name, gaps = guess.name, guess.gaps
    first = [f"pipelines/{name}/pipeline.yaml: write {', '.join(gaps)} (marked TODO), then:", ""] if gaps else []
    up = ["rivertwice up # Java and jars (once), broker (unless rivertwice.yaml names one), topics, agent"]
    if has_sample:
        up = ["rivertwice up --sample # Java and jars (once), broker, topics, agent; sends sample.jsonl"]
    elif guess.sample.is_file:
        up += [
            f"python pipelines/{name}/produce.py FILE # send the records of a file to the topic {guess.sample.topic}"
        ]
    lines = [
        "# A project of rivertwice",
        "",
        f"`pipelines/{name}/` was guessed from {guess.sample.origin}. The comments in `pipeline.yaml` say why each part is as it is.",
        "",
        *first,
        "```sh",
        *up,
        f"rivertwice start {name} --wait # until the stream has read what is in the log now",
        f"rivertwice reconcile {name} # recompute, and name the cause of every row that differs",
        f"rivertwice show {name} # the rows that are served",
        f"rivertwice lint {name} # is the definition accepted, and what does it promise?",
        f"rivertwice test {name} # its cases, as a stream and as a batch",
        f"rivertwice advise {name} # what other watermark delays would have done",
        "```",
        "",
        "| file | what it is |",
        "|---|---|",
        f"| `pipelines/{name}/pipeline.yaml`, `transform.sql` | the definition |",
        f"| `pipelines/{name}/cases/` | tests: records in, rows out |",
        "| `rivertwice.yaml` | settings |",
        "| `expectations/` | the gate of a reconcile |",
        f"| `expectations/{name}/windows.json` | what you expect of the data: checked with each reconcile |",
        "| `docker-compose.yml` | a broker, if you have none |",
        "| `.github/workflows/rivertwice.yml` | lint and test on every change |",
        "",
    ]
    return "\n".join(lines)


def render_produce(guess: Guess, zone: str | None) -> str:
    """Return the text of `produce.py`, which sends the records of a file to the topic."""
    event = guess.event_time
    key = guess.keys[0] if guess.keys else None
    paths = guess.sample.paths
    return f'''"""Send the records of a file to the topic {guess.sample.topic}: python pipelines/{guess.name}/produce.py FILE

Fields are named as in pipeline.yaml, and each record gets its event time as its timestamp, as if it had come when it happened.
"""

import json
import sys
from pathlib import Path

from rivertwice.config import Settings
from rivertwice.log.kafka import ensure_topic
from rivertwice.scaffold.produce import send_file

TOPIC, PARTITIONS = {json.dumps(guess.sample.topic)}, {guess.sample.partitions}
EVENT_TIME = {json.dumps(paths.get(event.name, event.name)) if event else None}
UNIT = {json.dumps(event.unit) if event and event.unit else None}  # of an event time that is a number since 1970
KEY = {json.dumps(paths.get(key, key)) if key else None}  # the field that becomes the Kafka key
ZONE = {json.dumps(zone) if zone else None}  # of times that are written without one

settings = Settings.from_env()
ensure_topic(settings, TOPIC, PARTITIONS)
sent = send_file(settings, Path(sys.argv[1]), TOPIC, event_time=EVENT_TIME, unit=UNIT, key=KEY, zone=ZONE)
print(json.dumps({{"topic": TOPIC, "sent": sent}}))
'''
