"""Mistakes that people make, each with what it must say and with the remedy that its message names.

They are made in the project that `rivertwice init` writes for a file of orders. `lab/docs/mistakes.md` shows every message as it is printed.
"""

from __future__ import annotations

from dataclasses import dataclass

YAML = "pipelines/orders/pipeline.yaml"
SQL = "pipelines/orders/transform.sql"
CASE = "pipelines/orders/cases/records_of_one_window.yaml"
SETTINGS = "rivertwice.yaml"
LINT = ("lint", "orders", "--without-spark")
WITH_SPARK = ("lint", "orders")
BOOTSTRAP = "# bootstrap: 127.0.0.1:9092"


@dataclass(frozen=True)
class Mistake:
    """One mistake.

    Attributes:
        title: what was done, in words.
        file: which file of the project is changed; empty: none.
        old: what the file holds.
        new: what is written instead.
        command: the command that meets the mistake.
        exit: its exit code.
        says: parts of the message: the fact, and the value.
        cure: what the message says to write instead of `new`, or instead of the words of the command.
        named: what of the cure the message names, if it is not its last word.
    """

    title: str
    file: str = ""
    old: str = ""
    new: str = ""
    command: tuple[str, ...] = LINT
    exit: int = 3
    says: tuple[str, ...] = ()
    cure: tuple[str, str] | None = None
    named: str = ""


def yaml(title: str, old: str, new: str, *says: str, cure: tuple[str, str] | None = None) -> Mistake:
    """Return a mistake in `pipeline.yaml`."""
    return Mistake(title, YAML, old, new, says=("pipelines/orders/pipeline.yaml", "line ", *says), cure=cure)


def sql(title: str, old: str, new: str, *says: str, cure: tuple[str, str] | None = None) -> Mistake:
    """Return a mistake in `transform.sql`, which Spark or its reader finds."""
    return Mistake(title, SQL, old, new, WITH_SPARK, says=("pipelines/orders/transform.sql: ", *says), cure=cure)


def settings(
    title: str, new: str, *says: str, command: tuple[str, ...] = ("status",), cure: tuple[str, str] | None = None
) -> Mistake:
    """Return a mistake in `rivertwice.yaml`."""
    return Mistake(title, SETTINGS, BOOTSTRAP, new, command, 1, says, cure)


def asked(
    title: str,
    *command: str,
    says: tuple[str, ...],
    code: int = 1,
    cure: tuple[str, str] | None = None,
    named: str = "",
) -> Mistake:
    """Return a mistake on the command line."""
    return Mistake(title, command=command, exit=code, says=says, cure=cure, named=named)


IN_YAML = (
    yaml("A tab indents a line", "  orders: # what", "\torders: # what", "is not YAML", "line 7, column 1"),
    yaml("A brace is not closed", "window: {size: 1 hour}", "window: {size: 1 hour", "is not YAML", "expected ','"),
    yaml("A key is written wrong", "event_time: placed_at", "event_tme: placed_at", "is not a field", cure=("event_tme", "event_time")),
    yaml("A section is written wrong", "sources:", "source:", "source is not a field", cure=("source:", "sources:")),
    yaml("The event time is not a field of the schema", "event_time: placed_at", "event_time: placed_on", "'placed_on' is absent", cure=("placed_on", "placed_at")),
    yaml("The event time is a number of milliseconds", "event_time: placed_at", "event_time: order_id", "'order_id' is bigint", "must be a field of type timestamp", cure=("event_time: order_id", "event_time: placed_at")),
    yaml("A type is written wrong", "shop: string", "shop: strng", "'strng' is not a valid field type", cure=("strng", "string")),
    yaml("A type of another database", "shop: string", "shop: varchar", "'varchar' is not a valid field type", cure=("varchar", "string")),
    yaml("A decimal with too many digits", "decimal(18,2)", "decimal(40,2)", "'decimal(40,2)' is not a valid field type", cure=("decimal(40,2)", "decimal(18,2)")),
    yaml("A required field is written wrong", "required: [shop, amount]", "required: [shop, amout]", "'amout'", cure=("amout", "amount")),
    yaml("A unit of time is written wrong", "{size: 1 hour}", "{size: 1 hor}", "'1 hor' is not a valid duration", cure=("1 hor}", "1 hour}")),
    yaml("A duration without a unit", "{size: 1 hour}", "{size: 3600}", "3600 is not a valid duration", cure=("3600", "1 hour")),
    yaml("A window of a month, which has no fixed length", "{size: 1 hour}", "{size: 1 month}", "'1 month' is not a valid duration"),
    yaml("A slide that does not divide the size", "{size: 1 hour}", "{size: 1 hour, slide: 25 minutes}", "slide 25 minutes"),
    yaml("A negative delay of the watermark", "watermark: 1 hour", "watermark: -1 hour", "'-1 hour' is not a valid duration"),
    yaml("The count column is not a column", "count_column: records", "count_column: record_count", "'record_count'", cure=("record_count", "records")),
    yaml("A way to compare is written wrong", "amount_sum: {compare: exact}", "amount_sum: {compare: exat}", "'exat'", cure=("exat", "exact")),
    yaml("A tolerance without its value", "amount_sum: {compare: exact}", "amount_sum: {compare: tolerance}", "tolerance is given exactly when"),
    yaml("A way to emit is written wrong", "emit: final", "emit: finally", "'finally'", cure=("finally", "final")),
    yaml("A policy for late records that does not exist", "policy: drop", "policy: keep", "'keep'", "'side_output'", cure=("keep", "drop")),
    yaml("The name is not the folder's", "name: orders", "name: order", "name is 'order'", cure=("name: order", "name: orders")),
    yaml("A topic's name with a space", 'topic: "orders"', 'topic: "orders 2026"', "cannot name a topic"),
    yaml("A topic without partitions", "partitions: 1", "partitions: 0", "partitions = 0", "at least 1", cure=("partitions: 0", "partitions: 1")),
    yaml("A number in words", "partitions: 1", "partitions: one", "partitions = 'one'", "a whole number"),
    yaml("A key is given twice", "partitions: 1", "partitions: 1\n    partitions: 2", "'partitions' is given again"),
    yaml("A unit of epochs is written wrong", "event_time: placed_at", "event_time: placed_at\n    epochs: {placed_at: millis}", "'millis'", "'ms'", cure=("millis", "ms")),
    yaml("A field without a value", "watermark: 1 hour", "watermark:", "watermark has no value"),
)  # fmt: skip

IN_SQL = (
    sql("A function is written wrong", "count(*) AS records", "cuont(*) AS records", "line 7, column 3", "`cuont`", cure=("cuont", "count")),
    sql("A field is written wrong in the query", "sum(amount)", "sum(amont)", "line 8, column 12", "`amont`", cure=("amont", "amount")),
    sql("A view is written wrong", "FROM orders", "FROM order", "line 10", "`order`", cure=("FROM order", "FROM orders")),
    sql("A word is missing", "GROUP BY window", "GROUP window", "line 11", "Syntax error"),
    sql("The window is not the definition's", "window(placed_at, '1 hour')", "window(placed_at, '2 hours')", "'2 hours'", cure=("window(placed_at, '2 hours')", "window(placed_at, '1 hour')")),
    sql("The clock is read", "count(*) AS records", "count(*) AS records, current_timestamp() AS made_at", "reads the clock", "use the event time"),
    sql("A random number", "count(*) AS records", "count(*) + rand() AS records", "another value in each run"),
    sql("A value that depends on the order of rows", "count(*) AS records", "count(*) AS records, first(order_id) AS first_order", "depends on the order of rows", "use min, max"),
    sql("Distinct values are counted", "count(*) AS records", "count(DISTINCT order_id) AS records", "counts distinct values"),
    sql("A sum of floating-point numbers", "CAST(sum(amount) AS DECIMAL(28, 2)) AS amount_sum", "sum(CAST(amount AS DOUBLE)) AS amount_sum", "'amount_sum' adds floating-point numbers", "cast to DECIMAL"),
    sql("There is no window", "GROUP BY window(placed_at, '1 hour'), shop", "GROUP BY shop", "there is no window() call", cure=("GROUP BY shop", "GROUP BY shop, window(placed_at, '1 hour')")),
    sql("A key is missing in GROUP BY", "'1 hour'), shop", "'1 hour')", '"shop"', "GROUP BY"),
    sql("Rows are ordered", "'1 hour'), shop", "'1 hour'), shop ORDER BY shop", "the plan has ORDER BY"),
    sql("Rows are limited", "'1 hour'), shop", "'1 hour'), shop LIMIT 10", "the plan has LIMIT"),
    sql("Two statements", "'1 hour'), shop", "'1 hour'), shop; SELECT 1", "there is a ';'", "exactly one SELECT"),
    sql("A column of the definition has another name", "AS window_start", "AS start", "'window_start' is not a column of the result", "['start'", cure=("AS start", "AS window_start")),
)  # fmt: skip

IN_CASES = (
    Mistake("A field of a case's event is written wrong", CASE, "{order_id: 0, shop: berlin", "{order_id: 0, shp: berlin", ("test", "orders"), says=("event '0-0': shp is not a field of the schema",), cure=("shp: berlin", "shop: berlin")),
    Mistake("A time without a zone", CASE, "placed_at: '2026-01-05T08:00:00+00:00'", "placed_at: '2026-01-05T08:00:00'", ("test", "orders"), says=("event '0-0': placed_at", "has no time zone"), cure=("'2026-01-05T08:00:00'", "'2026-01-05T08:00:00Z'")),
    Mistake("A case expects an event that it does not have", CASE, "late: []", "late: [0-7]", ("test", "orders"), says=("records_of_one_window.yaml", "'0-7'")),
    Mistake("An event without the time of its record", CASE, "  - id: 0-1\n    at: '2026-01-05T08:01:00Z'\n", "  - id: 0-1\n", ("test", "orders"), says=("records_of_one_window.yaml", "at is missing")),
)  # fmt: skip

IN_SETTINGS = (
    settings("A setting is written wrong", "bootstrp: 127.0.0.1:9092", "bootstrp is an unknown setting", cure=("bootstrp", "bootstrap")),
    settings("A broker without its port", "bootstrap: 127.0.0.1", "RIVERTWICE_BOOTSTRAP is '127.0.0.1'", "127.0.0.1:9092", cure=("bootstrap: 127.0.0.1", "bootstrap: 127.0.0.1:9092")),
    settings("A web address in place of a broker", "bootstrap: http://127.0.0.1:9092", "is not a valid broker address"),
    settings("Nothing answers at the broker's address", "bootstrap: 127.0.0.1:1", "127.0.0.1:1", command=("admin", "retention", "orders")),
    settings("A protocol that Kafka does not speak", "kafka: {protocol: SASL_SLL}", "'SASL_SLL'", "SASL_SSL", cure=("SASL_SLL", "PLAINTEXT")),
    settings("A password in the file", "kafka: {password: secret}", "password", "RIVERTWICE_KAFKA_PASSWORD"),
    settings("A master that Spark does not know", "spark_master: locl[*]", "'locl[*]'", "local[*]", cure=("locl[*]", "local[*]")),
    settings("Savepoints on a store that does not exist", "savepoints: s4://points", "'s4://points'", "s3://bucket/prefix"),
    settings("A number where a text belongs", "verdicts_kept: 90", "verdicts_kept", cure=("verdicts_kept: 90", "verdicts_kept: 90 days")),
    settings("A port that is none", "metrics: 127.0.0.1:99999", "'127.0.0.1:99999'", "127.0.0.1:9464", cure=("127.0.0.1:99999", "127.0.0.1:9464")),
)  # fmt: skip

ASKED = (
    asked("A pipeline's name is written wrong", "start", "ordres", says=("no pipeline 'ordres'",), cure=("ordres", "orders")),
    asked("A verb is written wrong", "stauts", code=2, says=("No command 'stauts'",), cure=("stauts", "status")),
    asked("An option is written wrong", "verdicts", "orders", "--caues", code=2, says=("No such option '--caues'",), cure=("--caues", "--causes")),
    asked("No agent runs that could start a stream", "start", "orders", "--wait", says=("no agent is running", "`rivertwice up`")),
    asked("A range that ends before it begins", "backfill", "plan", "orders", "--from", "2026-01-05T10:00:00Z", "--to", "2026-01-05T09:00:00Z", says=("is empty or reversed",)),
    asked("A time without a zone on the command line", "backfill", "plan", "orders", "--from", "2026-01-05T09:00:00", "--to", "2026-01-05T10:00:00Z", says=("has no time zone",), cure=("2026-01-05T09:00:00", "2026-01-05T09:00:00Z")),
    asked("A day that does not exist", "backfill", "plan", "orders", "--from", "2026-02-30T00:00:00Z", "--to", "2026-03-01T00:00:00Z", says=("2026-02-30",)),
    asked("Windows that are not closed yet", "backfill", "plan", "orders", "--from", "2026-01-06T10:00:00Z", "--to", "2026-01-06T12:00:00Z", says=("closed",)),
    asked("A savepoint that does not exist", "savepoint", "show", "orders", "nosuch", says=("nosuch",)),
    asked("A column is written wrong on the command line", "show", "orders", "--columns", "shp", says=("'shp'",), cure=("shp", "shop")),
    asked("A table is written wrong", "show", "orders", "--table", "verdcts", says=("no table 'verdcts'",), cure=("verdcts", "verdicts")),
    asked("A view is written wrong in a query", "query", "SELECT * FROM ordrs", says=("no view 'ordrs'",), cure=("ordrs", "orders")),
    asked("A query that writes", "query", "DELETE FROM orders", says=("only SELECT runs here", "rivertwice show NAME --write FILE")),
    asked("An export into a format that is not known", "show", "orders", "--write", "out.xlsx", says=("xlsx", ".csv"), cure=("out.xlsx", "out.csv"), named=".csv"),
    asked("A version that does not exist", "version", "compare", "orders@v9", says=("has no version 'orders@v9'", "rivertwice version list orders")),
    asked("A place that is not an address of a record", "dead", "show", "orders", "1:2", says=("'1:2' names no record", "2@117")),
    asked("A sample file that does not exist", "init", "new", "--from-file", "nosuch.jsonl", says=("nosuch.jsonl is not a file",)),
    asked("A sample file of an unknown format", "init", "new", "--from-file", "rivertwice.yaml", says=("its format is not known", "--delimiter")),
    asked("A topic that does not exist", "init", "new", "--from-topic", "no-such-topic", says=("no topic 'no-such-topic'",)),
    asked("A key that is not valid JSON", "show", "orders", "--key", "shop=berlin", says=("shop=berlin",)),
)  # fmt: skip

ALL = (*IN_YAML, *IN_SQL, *IN_CASES, *IN_SETTINGS, *ASKED)
