"""Access to Kafka with confluent-kafka: client options, topics, offsets, ids. Every error names the address and the remedy."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import cache
from typing import Any

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
    TopicDescription,
)

from rivertwice.core import (
    MSK_IAM,
    OAUTH,
    ConfigError,
    Deadline,
    KafkaSecurity,
    ServiceError,
    Settings,
    TopicName,
    naming_extras,
    retry_for,
    utc_now,
)
from rivertwice.log.addresses import Part
from rivertwice.log.reach import require_broker
from rivertwice.log.topic_sets import TopicSet, TopicSets

# The settings of Kafka's security in the dialects of both clients: librdkafka's for Python, Java's for Spark.
#
# No other module may name one of these options, and no text of a definition, a form or a record reaches them. Spark gets
# them as options of its source, in memory: not as a conf, because confs are in the JVM's argv. Spark redacts
# `sasl.jaas.config` in its log.

_SECURITY = "org.apache.kafka.common.security"
_MODULES = {
    "PLAIN": "plain.PlainLoginModule",
    "SCRAM-SHA-256": "scram.ScramLoginModule",
    "SCRAM-SHA-512": "scram.ScramLoginModule",
    OAUTH: "oauthbearer.OAuthBearerLoginModule",
}
_TOKEN_HANDLER = f"{_SECURITY}.oauthbearer.OAuthBearerLoginCallbackHandler"
_IAM = "software.amazon.msk.auth.iam"


def python_options(settings: Settings) -> dict[str, Any]:
    """Return librdkafka's options: the addresses of the brokers, and how to connect to them.

    Raises:
        ConfigError: no address or no password is known, or AWS's signer is not installed.
    """
    security = settings.kafka
    options: dict[str, Any] = {"bootstrap.servers": settings.bootstrap_servers()}
    if security.protocol != "PLAINTEXT":
        options["security.protocol"] = security.protocol
    if security.sasl:
        options |= _python_login(security)
    if security.ca is not None:
        options["ssl.ca.location"] = str(security.ca)
    if security.certificate is not None:
        options["ssl.certificate.location"] = str(security.certificate)
        options["ssl.key.location"] = str(security.certificate)
    return options


def spark_options(settings: Settings) -> dict[str, str]:
    """Return the options of Spark's Kafka source: address, security, and that records of aborted transactions are not read.

    Raises:
        ConfigError: no address or no password is known.
    """
    security = settings.kafka
    options = {
        "kafka.bootstrap.servers": settings.bootstrap_servers(),
        "kafka.isolation.level": "read_committed",
    }
    if security.protocol != "PLAINTEXT":
        options["kafka.security.protocol"] = security.protocol
    if security.sasl:
        options |= _spark_login(security)
    if security.ca is not None:
        options["kafka.ssl.truststore.type"] = "PEM"
        options["kafka.ssl.truststore.location"] = str(security.ca)
    if security.certificate is not None:
        options["kafka.ssl.keystore.type"] = "PEM"
        options["kafka.ssl.keystore.location"] = str(security.certificate)
    return options


def range_options(settings: Settings) -> dict[str, str]:
    """Return the options of Spark's Kafka source for a batch read of exact ranges, whose partitions are assigned.

    Spark keeps a consumer for each group and partition. With one group for all these reads they use the consumers of earlier
    ones; without it each read leaves idle consumers behind. No offsets are committed under the group.

    Raises:
        ConfigError: no address or no password is known.
    """
    return {**spark_options(settings), "kafka.group.id": "rivertwice-ranges"}


def _python_login(security: KafkaSecurity) -> dict[str, Any]:
    if security.mechanism == MSK_IAM:
        return {"sasl.mechanism": OAUTH, "oauth_cb": _signer(str(security.region))}
    if security.mechanism != OAUTH:
        return {
            "sasl.mechanism": str(security.mechanism),
            "sasl.username": str(security.username),
            "sasl.password": security.read_password(),
        }
    options = {
        "sasl.mechanism": OAUTH,
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": str(security.username),
        "sasl.oauthbearer.client.secret": security.read_password(),
        "sasl.oauthbearer.token.endpoint.url": str(security.token_endpoint),
    }
    if security.scope:
        options["sasl.oauthbearer.scope"] = security.scope
    if security.extensions:
        options["sasl.oauthbearer.extensions"] = ",".join(security.extensions)
    return options


def _spark_login(security: KafkaSecurity) -> dict[str, str]:
    if security.mechanism == MSK_IAM:
        return {
            "kafka.sasl.mechanism": MSK_IAM,
            "kafka.sasl.jaas.config": f"{_IAM}.IAMLoginModule required;",
            "kafka.sasl.client.callback.handler.class": f"{_IAM}.IAMClientCallbackHandler",
        }
    options = {
        "kafka.sasl.mechanism": str(security.mechanism),
        "kafka.sasl.jaas.config": jaas_config(security, security.read_password()),
    }
    if security.mechanism == OAUTH:
        options["kafka.sasl.login.callback.handler.class"] = _TOKEN_HANDLER
        options["kafka.sasl.oauthbearer.token.endpoint.url"] = str(security.token_endpoint)
    return options


def _signer(region: str) -> Any:
    """Return librdkafka's callback that signs a token with the identity that AWS's own clients find."""
    with naming_extras():
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider

    def token(_config: str) -> tuple[str, float]:
        signed, expires_ms = MSKAuthTokenProvider.generate_auth_token(region)
        return signed, expires_ms / 1000

    return token


def jaas_config(security: KafkaSecurity, password: str) -> str:
    """Return the login in Java's format. Pure.

    The module is from a fixed list. Values are quoted, so that none can end the text and name another module.
    """
    module = f"{_SECURITY}.{_MODULES[str(security.mechanism)]}"
    if security.mechanism != OAUTH:
        return f"{module} required username={_quoted(str(security.username))} password={_quoted(password)};"
    values = {"clientId": str(security.username), "clientSecret": password}
    if security.scope:
        values["scope"] = security.scope
    values |= {f"extension_{name}": value for name, _, value in (each.partition("=") for each in security.extensions)}
    return f"{module} required {' '.join(f'{name}={_quoted(value)}' for name, value in values.items())};"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


LOG = logging.getLogger(__name__)
TRANSACTION_S = 60.0  # Kafka aborts a transaction that is open for longer, so that readers of committed records do not wait for ever
_QUEUED_BYTES = 2_000_000  # of a transaction; what is queued when its time ends must still be sent
TIMEOUT = 20.0  # seconds; a broker that was killed needs up to 5 s to come back
_POLL_S = 0.2

REFUSAL_S = 3.0  # a login is answered much faster
_REFUSED = (KafkaError._AUTHENTICATION, KafkaError._SSL)
_LEADERLESS = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_LEADER_EPOCH,  # the broker does not know yet the leader that the metadata named
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError._NOENT,  # "No leaders found"
)
_MOST_BYTES = 90_000_000  # the client must be able to receive a message of that size
_RETENTION = {"retention.ms": "-1"}  # records carry the time of the event's arrival, which may be years ago


def _config(settings: Settings) -> dict[str, Any]:
    require_broker(settings)
    return {
        **python_options(settings),
        "socket.timeout.ms": 10_000,
        "logger": LOG,
        "log_level": 3,
    }


@contextmanager
def _explained(settings: Settings, doing: str) -> Iterator[None]:
    try:
        yield
    except (KafkaException, TimeoutError) as error:
        reason = error.args[0] if error.args else None
        if reason is None or (isinstance(reason, KafkaError) and reason.code() == KafkaError._TIMED_OUT):
            reason = "no answer in time"  # of whatever it waited for: that differs from call to call
        refused = refusal(settings)
        remedy = (
            f"it refuses this client ({refused}): check RIVERTWICE_KAFKA_*"
            if refused
            else "see `rivertwice status`, and start the embedded broker with `rivertwice up`"
        )
        message = f"Kafka at {settings.bootstrap_servers()} failed at {doing}: {reason}; {remedy}"
        raise ServiceError(message) from error


def refusal(settings: Settings) -> str | None:
    """Return why the brokers refuse this client, or None: a request itself only reports that no answer came in time."""
    if settings.kafka.protocol == "PLAINTEXT":
        return None
    errors: list[KafkaError] = []
    client = AdminClient(_config(settings) | {"error_cb": errors.append})
    deadline = Deadline.after(REFUSAL_S)
    while not deadline.is_over():
        client.poll(0.1)
        for error in errors:
            if error.code() in _REFUSED or "SSL" in str(
                error.str()
            ):  # TLS 1.3 refuses a certificate after the handshake
                return str(error.str())
    return None


def admin(settings: Settings) -> AdminClient:
    """Return an admin client for the configured cluster; nothing is sent yet."""
    return AdminClient(_config(settings))


def producer(
    settings: Settings,
    *,
    on_error: Callable[[KafkaError], None] | None = None,
    transactional_id: str | None = None,
    most_bytes: int | None = None,
) -> Producer:
    """Return an idempotent producer: acknowledged by all replicas, in order, without duplicates.

    Args:
        on_error: is passed errors that concern no single record.
        transactional_id: the producer sends transactions under this id.
        most_bytes: largest batch that the topic accepts; None: the client's own limit.
    """
    config = _config(settings) | {
        "enable.idempotence": True,
        "message.timeout.ms": 0,  # no timeout: a record that timed out would leave a hole in its partition
        "acks": "all",
        "linger.ms": 20,
        "compression.type": "lz4",
        "queue.buffering.max.messages": 200_000,
        "partitioner": "murmur2_random",  # Java's default: a key is in the partition in which Java clients look for it
    }
    if on_error is not None:
        config["error_cb"] = on_error
    if most_bytes is not None:
        config["message.max.bytes"] = min(max(most_bytes, 1_000), _MOST_BYTES)
    if transactional_id is not None:
        timeout_ms = round(TRANSACTION_S * 1000)
        config |= {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": timeout_ms,
            "message.timeout.ms": timeout_ms,
            "queue.buffering.max.kbytes": max(_QUEUED_BYTES, 2 * (most_bytes or 0)) // 1000,
        }
    return Producer(config)


def consumer(
    settings: Settings, *, group: str = "rivertwice-reader", extra: Mapping[str, Any] | None = None
) -> Consumer:
    """Return a consumer that commits no offset, and fails if an offset is gone instead of skipping it."""
    fixed = {"group.id": group, "enable.auto.commit": False, "auto.offset.reset": "error", "check.crcs": True}
    return Consumer(_config(settings) | fixed | dict(extra or {}))


def read_at(settings: Settings, places: Sequence[TopicPartition]) -> dict[tuple[int, int], Message]:
    """Return the one record at each place, by (partition, offset).

    Raises:
        ServiceError: not all records came in time.
    """
    if not places:
        return {}
    reader = consumer(settings)
    records: dict[tuple[int, int], Message] = {}
    addresses = {(place.partition, place.offset) for place in places}
    deadline = Deadline.after(TIMEOUT)
    try:
        reader.assign(list(places))
        while addresses - records.keys() and not deadline.is_over():
            for message in reader.consume(500, 0.5):
                if message.error() is None:
                    records[(int(message.partition() or 0), int(message.offset() or 0))] = message
    finally:
        reader.close()
    if addresses - records.keys():
        text = (
            f"Kafka at {settings.bootstrap_servers()} did not give the records at {sorted(addresses - records.keys())} "
            f"(partition, offset) within {TIMEOUT:.0f} s; see `rivertwice status`"
        )
        raise ServiceError(text)
    return {address: records[address] for address in sorted(addresses)}


def ensure_topic(settings: Settings, topic: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
    """Create `topic` if it is absent, and wait for its leaders; retention is unlimited unless `config` sets it.

    Raises:
        ConfigError: the topic exists with another number of partitions; addresses and keys would not fit.
    """
    new = NewTopic(topic, partitions, 1 if settings.bootstrap is None else -1, config=_RETENTION | dict(config or {}))
    client = admin(settings)
    with _explained(settings, f"creating topic {topic}"):
        try:
            client.create_topics([new], request_timeout=TIMEOUT)[topic].result(TIMEOUT)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
    actual = len(_described(settings, topic))
    if actual != partitions:
        message = (
            f"topic {topic} has {actual} partitions, not {partitions}; keys would move and offsets would not fit "
            f"the definition; write `partitions: {actual}` in the definition or use another topic"
        )
        raise ConfigError(message)
    end_offsets(settings, topic)  # asked until every partition has a leader: a plain reader would not wait


def _described(settings: Settings, topic: str) -> list[int]:
    """Return the partitions of an existing topic; retry, because a busy broker may not know a new topic yet."""
    asking = retry_for(_is_unknown, seconds=TIMEOUT, every_s=_POLL_S)
    return asking(_partitions, settings, topic)


def _is_unknown(error: BaseException) -> bool:
    cause = error.__cause__
    kafka_error = cause.args[0] if isinstance(cause, KafkaException) and cause.args else None
    return isinstance(kafka_error, KafkaError) and kafka_error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def delete_topic(settings: Settings, topic: str) -> None:
    """Delete a topic and wait for the broker's confirmation; an absent topic is not an error."""
    client = admin(settings)
    with _explained(settings, f"deleting topic {topic}"):
        try:
            client.delete_topics([topic], request_timeout=TIMEOUT)[topic].result(TIMEOUT)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise


def topic_names(settings: Settings) -> list[str]:
    """Return the names of the cluster's topics, sorted, without those that Kafka keeps for itself."""
    with _explained(settings, "listing topics"):
        return sorted(name for name in admin(settings).list_topics(timeout=TIMEOUT).topics if not name.startswith("__"))


def topic_exists(settings: Settings, topic: str) -> bool:
    """Say whether the cluster has the topic, or all topics that joined a pattern's log."""
    names = set(TopicSet.load(settings, topic).topic_ids) if TopicName(topic).is_pattern else {topic}
    with _explained(settings, "listing topics"):
        return bool(names) and names <= set(admin(settings).list_topics(timeout=TIMEOUT).topics)


def _describe_all(
    settings: Settings, topics: Sequence[str], client: AdminClient | None = None
) -> dict[str, TopicDescription]:
    client = client or admin(settings)  # kept until the answer is there: a dropped client cancels its requests
    with _explained(settings, f"describing topic {', '.join(topics)}"):
        answers = client.describe_topics(TopicCollection(list(topics)), request_timeout=TIMEOUT)
        return {topic: answers[topic].result(TIMEOUT) for topic in topics}


def _partitions(settings: Settings, topic: str, client: AdminClient | None = None) -> list[int]:
    return sorted(partition.id for partition in _describe_all(settings, [topic], client)[topic].partitions)


def find_parts(settings: Settings, topic: str, client: AdminClient | None = None) -> dict[int, Part]:
    """Return the partitions of a topic, or of all topics that joined a pattern's log, by the numbers that they have there.

    Raises:
        ServiceError: Kafka does not answer, or no topic has joined the pattern.
    """
    if TopicName(topic).is_pattern:
        return dict(enumerate(_joined(settings, topic).parts))
    return {partition: Part(topic, partition) for partition in _partitions(settings, topic, client)}


def _joined(settings: Settings, pattern: str) -> TopicSet:
    found = TopicSet.load(settings, pattern)
    if not found.parts and join_topics(settings, pattern, utc_now()):
        found = TopicSet.load(settings, pattern)
    if not found.parts:
        message = (
            f"no topic of Kafka at {settings.bootstrap_servers()} has joined {pattern}: a stream that reads it waits for the first whose name "
            "matches; create one, or correct topic in the definition"
        )
        raise ServiceError(message)
    return found


def join_topics(settings: Settings, pattern: str, now: datetime) -> list[str]:
    """Let each topic, and each partition, that matches the pattern and is new in its log join it; return the topics.

    Two that do so at the same time number the same log: one records, the other looks again.
    """
    while True:
        known = TopicSet.load(settings, pattern)
        names = [name for name in topic_names(settings) if TopicName(pattern).reads(name)]
        described = _describe_all(settings, names) if names else {}
        found = {
            name: (str(each.topic_id), [partition.id for partition in each.partitions])
            for name, each in described.items()
        }
        new = known.find_new(found)
        if not new or known.record(settings, new, now):
            return [each.topic for each in new]


def _offsets(
    settings: Settings,
    topic: str,
    spec: OffsetSpec,
    kept: AdminClient | None = None,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[int, int]:
    client = kept or admin(settings)
    parts = find_parts(settings, topic, client)
    numbers = {part: number for number, part in parts.items()}
    requests = {TopicPartition(*part): spec for part in numbers}

    def ask() -> dict[int, int]:
        answers = client.list_offsets(requests, isolation_level=isolation, request_timeout=TIMEOUT)
        return {
            numbers[Part(place.topic, place.partition)]: int(answer.result(TIMEOUT).offset)
            for place, answer in answers.items()
        }

    def look(_: BaseException) -> None:
        # Without it the client asks the leader that it knows, with the old epoch, again and again.
        for name in {part.topic for part in numbers}:
            client.list_topics(name, timeout=TIMEOUT)

    with _explained(settings, f"reading the offsets of topic {topic}"):
        return dict(sorted(retry_for(_is_leaderless, seconds=TIMEOUT, every_s=_POLL_S, say=look)(ask).items()))


def _is_leaderless(error: BaseException) -> bool:
    """Say whether the partition has no leader now: its topic is new, or the request went to the old leader."""
    return isinstance(error, KafkaException) and error.args[0].code() in _LEADERLESS


def end_offsets(settings: Settings, topic: str) -> dict[int, int]:
    """Return per partition the offset of the next record."""
    return _offsets(settings, topic, OffsetSpec.latest())  # type: ignore[no-untyped-call]


def stable_ends(settings: Settings, topic: str) -> dict[int, int]:
    """Return per partition where committed records can be read to: the end, or the first open transaction."""
    return stable_ends_asker(settings, [topic])()[topic]


def stable_ends_asker(settings: Settings, topics: Sequence[str]) -> Callable[[], dict[str, dict[int, int]]]:
    """Return a function that returns, by topic, where a stream can read to: no further than the first open transaction.

    It keeps one connection, for repeated calls.
    """
    client = admin(settings)
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    stable = IsolationLevel.READ_COMMITTED
    return lambda: {topic: _offsets(settings, topic, latest, client, stable) for topic in topics}


def position_reporter(settings: Settings, group: str) -> Callable[[Mapping[str, Mapping[str, int]]], None]:
    """Return a function that tells Kafka the position of a consumer group without members: topic to partition to the next offset.

    It keeps one connection, for repeated calls. A commit of Kafka's own is not the truth of a stream: whoever watches the lag reads it.
    """
    connect = cache(lambda: admin(settings))  # a stream starts without it

    def report(offsets: Mapping[str, Mapping[str, int]]) -> None:
        named = TopicSets.load(settings, offsets).to_kafka(offsets)
        places = [TopicPartition(topic, int(p), int(o)) for topic, parts in named.items() for p, o in parts.items()]
        with _explained(settings, f"reporting the position of consumer group {group}"):
            request = [ConsumerGroupTopicPartitions(group, places)]
            for answer in connect().alter_consumer_group_offsets(request, request_timeout=TIMEOUT).values():
                answer.result(TIMEOUT)

    return report


def begin_offsets(settings: Settings, topic: str) -> dict[int, int]:
    """Return per partition the oldest offset that Kafka still has."""
    return _offsets(settings, topic, OffsetSpec.earliest())  # type: ignore[no-untyped-call]


def offsets_at(settings: Settings, topic: str, at_ms: int) -> dict[int, int]:
    """Return per partition the offset of the first record stamped at or after an instant (epoch ms); without one, its end."""
    found = _offsets(settings, topic, OffsetSpec.for_timestamp(at_ms))
    ends = end_offsets(settings, topic)
    return {partition: ends[partition] if offset < 0 else offset for partition, offset in found.items()}


def delete_records(settings: Settings, topic: str, before: Mapping[int, int]) -> None:
    """Make Kafka delete the records below the given offsets, as retention would."""
    sets = TopicSets.load(settings, [topic])
    places = [TopicPartition(*sets.part(topic, partition), offset) for partition, offset in before.items()]
    client = admin(settings)
    with _explained(settings, f"deleting records of topic {topic}"):
        for answer in client.delete_records(places, request_timeout=TIMEOUT).values():
            answer.result(TIMEOUT)


def topic_config(settings: Settings, topic: str) -> dict[str, str]:
    """Return the topic's settings as the broker applies them, both its own and inherited ones.

    For a pattern, those of the topic that Kafka keeps for the shortest time; it is compacted if one of its topics is.
    """
    if not TopicName(topic).is_pattern:
        return _topic_config(settings, topic)
    configs = [_topic_config(settings, name) for name in sorted(_joined(settings, topic).topic_ids)]
    policies = {each.get("cleanup.policy", "delete") for each in configs}
    shortest = min(configs, key=lambda each: int(each.get("retention.ms", "-1")) % (1 << 63))  # -1: for ever
    return {**shortest, "cleanup.policy": ",".join(sorted(policies))}


def _topic_config(settings: Settings, topic: str) -> dict[str, str]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    client = admin(settings)
    with _explained(settings, f"reading the settings of topic {topic}"):
        entries = client.describe_configs([resource], request_timeout=TIMEOUT)[resource].result(TIMEOUT)
    return {name: str(entry.value) for name, entry in entries.items()}


def is_compacted(settings: Settings, topic: str) -> bool:
    """Say whether Kafka may remove a topic's records that newer ones supersede; no, if this client may not see its settings."""
    try:
        return "compact" in topic_config(settings, topic).get("cleanup.policy", "delete")
    except ServiceError as error:
        cause = error.__cause__
        if isinstance(cause, KafkaException) and cause.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            return False
        raise


def add_partitions(settings: Settings, topic: str, total: int) -> None:
    """Give a topic more partitions."""
    client = admin(settings)
    with _explained(settings, f"adding partitions to topic {topic}"):
        client.create_partitions([NewPartitions(topic, total)], request_timeout=TIMEOUT)[topic].result(TIMEOUT)


def cluster_id(settings: Settings) -> str:
    """Return the id of the Kafka cluster, the first part of a record's address."""
    with _explained(settings, "asking for the cluster id"):
        found_id = admin(settings).list_topics(timeout=TIMEOUT).cluster_id
    return str(found_id)


def topic_id(settings: Settings, topic: str) -> str:
    """Return the topic's id; a topic that was deleted and created again has another one, and so has the log of its pattern."""
    return topic_id_asker(settings, topic)()


def topic_id_asker(settings: Settings, topic: str) -> Callable[[], str]:
    """Return a function like `topic_id` that keeps one connection, for repeated calls."""
    client = admin(settings)

    def ask() -> str:
        joined = _joined(settings, topic) if TopicName(topic).is_pattern else None
        names = [topic] if joined is None else sorted(joined.topic_ids)
        ids = {name: str(each.topic_id) for name, each in _describe_all(settings, names, client).items()}
        if joined is None:
            return ids[topic]
        replaced = [f"{name} {ids[name]}" for name, known in sorted(joined.topic_ids.items()) if ids[name] != known]
        return joined.id if not replaced else f"{joined.id}, but of {', '.join(replaced)}"

    return ask
