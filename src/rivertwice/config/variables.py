"""Every setting of a process by its variable: what it says, what holds without it, and its key in `rivertwice.yaml`.

`Settings`, `KafkaSecurity` and a few rooms read them; this table is for the reference and its test.
"""

from __future__ import annotations

from dataclasses import dataclass

from rivertwice.config.kafka_security import MECHANISMS, PROTOCOLS


@dataclass(frozen=True)
class Variable:
    """One environment variable.

    Attributes:
        name: of the variable.
        meaning: what it sets.
        default: what holds without it.
        key: the key of the same setting in `rivertwice.yaml`; None if it is no setting of a project.
    """

    name: str
    meaning: str
    default: str = ""
    key: str | None = None


VARIABLES: tuple[Variable, ...] = (
    Variable("RIVERTWICE_PROJECT", "folder that has `pipelines/`", "the current folder"),
    Variable("RIVERTWICE_HOME", "folder of all state", "`.rivertwice` of the project", "home"),
    Variable("RIVERTWICE_BOOTSTRAP", "Kafka's `bootstrap.servers`", "the embedded broker", "bootstrap"),
    Variable("RIVERTWICE_SPARK_MASTER", "URL of the Spark master", "`local[*]`", "spark_master"),
    Variable("RIVERTWICE_SHARED", "place of all data that outlives a host: `s3://bucket/prefix`, or a folder that all hosts mount",
             "the home, for one host", "shared"),
    Variable("RIVERTWICE_SAVEPOINTS", "place of the savepoints: `s3://bucket/prefix`",
             "below `shared`, else in each pipeline's home", "savepoints"),
    Variable("RIVERTWICE_LEASES", "place of the leases: `s3://bucket/prefix`, or a folder",
             "below `shared`, else in each pipeline's home", "leases"),
    Variable("RIVERTWICE_VERDICTS_KEPT", "how long verdicts and causes of a reconcile are kept, in days", "`90 days`", "verdicts_kept"),
    Variable("RIVERTWICE_METRICS", "`HOST:PORT` where the agent serves its figures for Prometheus", "it serves none", "metrics"),
    Variable("RIVERTWICE_SPARK_UI", "`on`: drivers show Spark's own UI, which has no login, on a free port of the addresses they listen on",
             "`off`"),
    Variable("RIVERTWICE_ENGINE", "`off`: each verb starts its own Spark, as with `--cold`, instead of using the home's warm engine", "`on`"),
    Variable("RIVERTWICE_ALERTS", "file with the routes of alerts", "`alerts.yaml` of the project, if there is one", "alerts"),
    Variable("RIVERTWICE_ALERT_WEBHOOK", "address that gets every alert; a route for a home without a file of routes", "none"),
    Variable("RIVERTWICE_DOWNLOADS", "folder of Java and the jars that `rivertwice setup` fetched",
             "`.build` of the project if it is there, else a folder of the user's cache", "downloads"),
    Variable("RIVERTWICE_KAFKA_PROTOCOL", f"how clients connect to Kafka: {', '.join(PROTOCOLS)}", "`PLAINTEXT`", "kafka.protocol"),
    Variable("RIVERTWICE_KAFKA_MECHANISM", f"how they log in, with a SASL protocol: {', '.join(MECHANISMS)}", "none", "kafka.mechanism"),
    Variable("RIVERTWICE_KAFKA_USERNAME", "name of the login", "none", "kafka.username"),
    Variable("RIVERTWICE_KAFKA_PASSWORD", "its password: a secret, so no key of a file sets it", "none"),
    Variable("RIVERTWICE_KAFKA_PASSWORD_FILE", "file that holds the password", "none", "kafka.password_file"),
    Variable("RIVERTWICE_KAFKA_CA", "PEM file of the authorities that sign the brokers' certificates", "those of the system", "kafka.ca"),
    Variable("RIVERTWICE_KAFKA_CERTIFICATE", "PEM file with the client's own key and certificates", "none", "kafka.certificate"),
    Variable("RIVERTWICE_KAFKA_TOKEN_ENDPOINT", "with OAUTHBEARER, the address that gives tokens", "none", "kafka.token_endpoint"),
    Variable("RIVERTWICE_KAFKA_SCOPE", "scope of the tokens that are asked for", "the endpoint's own", "kafka.scope"),
    Variable("RIVERTWICE_KAFKA_EXTENSIONS", "SASL extensions of OAUTHBEARER: `name=value,name=value`", "none", "kafka.extensions"),
    Variable("RIVERTWICE_KAFKA_REGION", "with AWS_MSK_IAM, the region of the brokers", "none", "kafka.region"),
    Variable("RIVERTWICE_KAFKA_CONN_ID", "Airflow's connection that says how to reach Kafka", "the variables above", "kafka_conn_id"),
    Variable("RIVERTWICE_AWS_CONN_ID", "Airflow's connection that says how to reach S3", "the AWS client's own chain", "aws_conn_id"),
    Variable("RIVERTWICE_SCHEMA_REGISTRY", "address of a Confluent schema registry", "the folder `schemas/` of the project"),
    Variable("RIVERTWICE_SCHEMA_REGISTRY_USER", "name of the login there", "none"),
    Variable("RIVERTWICE_SCHEMA_REGISTRY_PASSWORD", "its password", "none"),
    Variable("RIVERTWICE_POSTGRES", "connection string for delivery to PostgreSQL; `dsn_env` of a sink can name another variable", "none"),
    Variable("RIVERTWICE_DURABLE", "`off`: writes reach the disk when the system brings them there, within half a minute; for tests", "`on`"),
)  # fmt: skip
