"""What the source may not do, read from its syntax trees. Every exception is listed with its reason."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest
import yaml

from homes.project import REPOSITORY
from rivertwice.core.kafka_security import KafkaSecurity
from rivertwice.core.settings import Settings
from rivertwice.engine.jvm import start_confs
from rivertwice.local.broker import broker_properties
from rivertwice.log.kafka import python_options, spark_options

OF_THE_LAB = ("lab/control", "lab/demo", "lab/faults", "lab/flights", "lab/model", "lab/oracle")
FOLDERS = ("src", "dags", "spark_jobs", "plugins", "scripts", *OF_THE_LAB)
FILES = sorted(path for folder in FOLDERS for path in (REPOSITORY / folder).rglob("*.py"))

# (file, called name): why a text that is no literal may reach it
SQL_ALLOWED = {
    (
        "src/rivertwice/engine/views.py",
        "sql",
    ): "the definition's own transform.sql and rows.sql: code of the repository",
    (
        "src/rivertwice/versions/try_compare.py",
        "expr",
    ): "a predicate of the definition's own change file: code of the repository, checked as its SQL is",
    (
        "src/rivertwice/engine/compile.py",
        "expr",
    ): "key columns: texts that a session without data made of the definition's own plan, read again and found the same",
    (
        "src/rivertwice/engine/row_errors.py",
        "expr",
    ): "expressions of the definition's own SQL, written by Spark for a server, read again and found the same",
    ("src/rivertwice/savepoint/feed.py", "selectExpr"): "a constant tuple of that module",
    (
        "src/rivertwice/read/query.py",
        "sql",
    ): "the person's own query; it reads the project's views and nothing else (tests/unit/read/test_query.py)",
}
SQL_CALLS = {"sql", "expr", "selectExpr"}
SQL_IF_TEXT = {"where", "filter", "having", "agg"}  # Columns are fine, texts are SQL


@cache
def trees() -> tuple[tuple[str, ast.AST], ...]:
    return tuple((path.relative_to(REPOSITORY).as_posix(), ast.parse(path.read_text())) for path in FILES)


def called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def is_literal(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant)


def sql_calls(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = called(node)
        texts = [isinstance(arg, (ast.JoinedStr, ast.BinOp)) and _mentions_text(arg) for arg in node.args]
        if (name in SQL_CALLS and not all(is_literal(arg) for arg in node.args)) or (
            name in SQL_IF_TEXT and any(texts)
        ):
            yield name, node.lineno


def _mentions_text(node: ast.expr) -> bool:
    if isinstance(node, ast.JoinedStr):
        return True
    parts = [part for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    calls = [part for part in ast.walk(node) if isinstance(part, (ast.Call, ast.Compare))]
    return bool(parts) and not calls


def test_the_check_finds_what_it_is_for():
    bad = "frame.filter(f'x = {v}'); spark.sql(q); F.expr(a + 'b'); frame.where('a ' + name); frame.selectExpr(*names)"
    assert [name for name, _ in sql_calls(ast.parse(bad))] == ["filter", "sql", "expr", "where", "selectExpr"]
    good = "frame.filter(F.col('x') == F.lit('a')); frame.where('_late'); spark.sql('SELECT 1')"
    assert list(sql_calls(ast.parse(good))) == []


@pytest.mark.proves("security.md#security")
def test_no_text_that_is_no_literal_reaches_sql_outside_the_listed_places():
    found = {(path, name) for path, tree in trees() for name, _ in sql_calls(tree)}
    assert found <= SQL_ALLOWED.keys(), sorted(found - SQL_ALLOWED.keys())


FORBIDDEN_IMPORTS = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
FORBIDDEN_CALLS = {"eval", "exec", "os.system", "yaml.load", "yaml.full_load", "yaml.unsafe_load", "tempfile.mktemp"}
CALLS_ALLOWED = {
    ("src/rivertwice/definition/folds.py", "exec"): "code of the repository, as SQL is",
}
IMPORTS_ALLOWED = {
    ("lab/model/exhaustive/search.py", "pickle"): "copies of its own objects, in memory",
    ("lab/model/exhaustive/search.py", "marshal"): "writes only: the bytes of a hash",
}


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


@pytest.mark.proves("howto-airflow.md#what-a-form-refuses")
def test_nothing_that_runs_what_it_reads_is_imported_or_called():
    for path, tree in trees():
        for node in ast.walk(tree):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name.partition(".")[0] for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [(node.module or "").partition(".")[0]]
            refused = [name for name in FORBIDDEN_IMPORTS & set(names) if (path, name) not in IMPORTS_ALLOWED]
            assert not refused, (path, refused)
            if isinstance(node, ast.Call):
                called = dotted(node.func)
                assert called not in FORBIDDEN_CALLS or (path, called) in CALLS_ALLOWED, (path, node.lineno)
                shell = [kw for kw in node.keywords if kw.arg == "shell"]
                assert not shell, (path, node.lineno)


@pytest.mark.proves("security.md#kafka-with-tls-and-a-login")
def test_no_certificate_check_is_switched_off():
    for path, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                for word in node.keywords:
                    off = isinstance(word.value, ast.Constant) and word.value.value is False
                    assert not (word.arg == "verify" and off), (path, node.lineno)


CLIENT_OPTIONS = {
    "acks", "auto.offset.reset", "bootstrap.servers", "check.crcs", "compression.type", "enable.auto.commit",
    "enable.auto.offset.store", "enable.idempotence", "enable.partition.eof", "error_cb", "fetch.wait.max.ms", "group.id",
    "isolation.level", "linger.ms", "log_level", "logger", "message.timeout.ms", "queue.buffering.max.messages",
    "request.timeout.ms", "session.timeout.ms", "socket.timeout.ms", "transactional.id", "transaction.timeout.ms",
}  # fmt: skip
DANGEROUS = re.compile(r"sasl\.jaas|\.url$|\.location$|login\.|oauthbearer|class$", re.IGNORECASE)


@pytest.mark.proves("security.md#security")
def test_kafka_clients_are_given_only_listed_options_all_of_them_literals():
    found = set()
    for path, tree in trees():
        if not path.startswith("src/rivertwice/log/"):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Dict) and any(is_client_option(key) for key in node.keys):
                taken_in = [value for key, value in zip(node.keys, node.values, strict=True) if key is None]
                assert {dotted(value.func) if isinstance(value, ast.Call) else "?" for value in taken_in} <= {
                    "python_options"
                }
                named = [key for key in node.keys if key is not None]
                assert all(isinstance(key, ast.Constant) for key in named), (path, node.lineno)
                found |= {str(key.value) for key in named if isinstance(key, ast.Constant)}
    found = {name for name in found if not name.endswith((".bytes", ".ms")) or name in CLIENT_OPTIONS}
    assert "enable.auto.commit" in found
    assert not [name for name in found if DANGEROUS.search(name)]


def is_client_option(key: ast.expr | None) -> bool:
    return isinstance(key, ast.Constant) and key.value in CLIENT_OPTIONS


SECURITY = "src/rivertwice/log/kafka.py"
CONNECTION = "src/rivertwice/airflow/connections.py"
"""Reads what a connection of Airflow says, as variables; no client is given any of it."""
SECURITY_OPTION = re.compile(r"^(kafka\.)?(security\.protocol|sasl\.|ssl\.|bootstrap\.servers|isolation\.level)")


@pytest.mark.proves("security.md#security")
def test_options_of_address_and_security_are_named_in_one_file_only():
    """Elsewhere neither client is told where brokers are or how to log in, so no text from outside can tell it."""
    allowed = {
        SECURITY: SECURITY_OPTION,
        CONNECTION: SECURITY_OPTION,
        "src/rivertwice/log/reader.py": re.compile("isolation.level"),
        "src/rivertwice/definition/confluent.py": re.compile(r"ssl\.(ca|certificate)\.location"),  # of a registry
    }
    for path, tree in trees():
        if path.startswith("lab/"):  # the oracle and the control job are programs of their own
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and SECURITY_OPTION.match(node.value):
                assert path in allowed, (path, node.lineno, node.value)
                assert allowed[path].search(node.value), (path, node.lineno, node.value)


def test_spark_gets_kafka_options_from_its_source_and_never_as_confs():
    """A conf given to the session's builder is in the argv of its JVM."""
    unpacked = []
    for path, tree in trees():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or path.startswith("lab/"):
                continue
            if called(node) == "option" and node.args and isinstance(node.args[0], ast.Constant):
                assert not str(node.args[0].value).startswith("kafka."), (path, node.lineno)
            if called(node) == "spark_options":
                unpacked.append(path)
    fast = ["src/rivertwice/deliver/fast_job.py"] * 2  # source and sink
    look = "src/rivertwice/engine/remote.py"  # whether a server has the connector; there is no login in it
    assert sorted(unpacked) == [*fast, look, "src/rivertwice/log/kafka.py", "src/rivertwice/stream/source.py"]


@pytest.mark.proves("security.md#security")
def test_the_options_of_both_clients_are_a_fixed_list(tmp_path):
    (tmp_path / "password").write_text("x")
    security = KafkaSecurity(
        "SASL_SSL", "PLAIN", "u", tmp_path / "password", ca=tmp_path / "ca", certificate=tmp_path / "me"
    )
    settings = Settings(project=REPOSITORY, home=tmp_path, bootstrap="h:1", kafka=security)
    assert set(python_options(settings)) == {
        "bootstrap.servers", "security.protocol", "sasl.mechanism", "sasl.username", "sasl.password",
        "ssl.ca.location", "ssl.certificate.location", "ssl.key.location",
    }  # fmt: skip
    assert set(spark_options(settings)) == {
        "kafka.bootstrap.servers", "kafka.isolation.level", "kafka.security.protocol", "kafka.sasl.mechanism",
        "kafka.sasl.jaas.config", "kafka.ssl.truststore.type", "kafka.ssl.truststore.location",
        "kafka.ssl.keystore.type", "kafka.ssl.keystore.location",
    }  # fmt: skip


LISTENERS = re.compile(r"0\.0\.0\.0|\[::\]|\bhost=\"\"|bind\(\(\"\"")


def test_nothing_of_ours_listens_beyond_loopback():
    assert [str(path) for path in FILES if LISTENERS.search(path.read_text())] == []


def test_compose_publishes_on_loopback_only_and_has_no_default_secret():
    text = (REPOSITORY / "docker-compose.yml").read_text()
    services = yaml.safe_load(text)["services"]
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert ports
    assert all(str(port).startswith("127.0.0.1:") for port in ports)
    for name in ("POSTGRES_PASSWORD", "AIRFLOW_FERNET_KEY", "AIRFLOW_JWT_SECRET", "S3_ACCESS_KEY", "S3_SECRET_KEY"):
        assert f"${{{name}:?" in text
        assert f"${{{name}:-" not in text


def test_spark_and_the_broker_listen_on_loopback(tmp_path):
    confs = start_confs(Settings(project=REPOSITORY, home=tmp_path), [])
    assert (confs["spark.driver.host"], confs["spark.driver.bindAddress"]) == ("127.0.0.1", "127.0.0.1")
    assert confs["spark.ui.enabled"] == "false"
    listeners = broker_properties(tmp_path, (9092, 9093))["listeners"].split(",")
    assert all(listener.partition("://")[2].startswith("127.0.0.1:") for listener in listeners)


def test_every_package_of_the_locks_is_pinned_by_hash():
    for lock in REPOSITORY.glob("requirements*.lock"):
        lines = lock.read_text().splitlines()
        pins = [number for number, line in enumerate(lines) if re.match(r"^[a-zA-Z0-9_.\[\]-]+==", line)]
        assert pins, lock.name
        for number in pins:
            assert lines[number + 1].strip().startswith("--hash=sha256:"), (lock.name, lines[number])


# (file, line's text): what the commands print past `frame.say`, which writes out control characters
PRINTS_ALLOWED = {
    ("src/rivertwice/cli/docs.py", "Markdown"): "pages of the installed package",
    ("src/rivertwice/cli/metrics.py", "alerting_rules"): "our own text and checked names",
    ("src/rivertwice/cli/metrics.py", "dashboard"): "our own file, a constant",
    ("src/rivertwice/cli/metrics.py", "exposition"): "Prometheus' format, whose library escapes labels",
    ("src/rivertwice/cli/schemas.py", "text"): "the schema of definitions, a constant",
}


def test_commands_print_by_the_function_that_escapes_control_characters() -> None:
    found = set()
    for path, tree in trees():
        if not path.startswith("src/rivertwice/cli/") or path.endswith(("/frame.py", "/engine_server.py")):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and called(node) in {"echo", "secho", "print", "print_exc"}:
                argument = node.args[0] if node.args else None
                what = called(argument) if isinstance(argument, ast.Call) else getattr(argument, "id", "?")
                found.add((path, what))
    assert found == set(PRINTS_ALLOWED)


@pytest.mark.proves("howto-schemas.md#schemas-several-versions-of-a-record-in-one-topic")
def test_only_the_schema_commands_and_init_ask_a_registry():
    registries = {"open_registry", "ConfluentRegistry", "FolderRegistry"}
    taken = {
        (path, alias.name)
        for path, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name in registries and not path.endswith("/__init__.py")  # a face: who takes it from there is found
    }
    assert taken == {
        ("src/rivertwice/cli/schemas.py", "open_registry"),
        ("src/rivertwice/local/read_topic.py", "open_registry"),
        ("src/rivertwice/definition/schema_registry.py", "ConfluentRegistry"),
        ("src/rivertwice/definition/schema_registry.py", "FolderRegistry"),
    }
