"""F58: results delivered to PostgreSQL; deliverers killed, stopped and doubled, and the answer to COMMIT that never comes."""

from __future__ import annotations

from functools import partial

import psycopg
from psycopg import sql

from lab.faults.cases import LabError, case, require
from lab.faults.lab import Lab
from lab.faults.postgres import address_at, commit_of_a_step, loopback_server, missing, port_of
from lab.faults.proxy import FaultProxy
from lab.faults.savepoint_runs import command_log
from lab.faults.sink_runs import NOTED, SinkRun, define_sinks, shuffled, stream, struck
from lab.faults.strikes import BEFORE
from lab.oracle.delivered import Holding, Place, Values, judge_rows

VARIABLE = "LAB_POSTGRES"
STILL_S = 5.0
_SINK = "rivertwice.deliver.postgres_sink"
OPENED = struck("the sink opened", f"{_SINK}:PostgresSink.open")
LOCKED = struck("the position is locked", f"{_SINK}:PostgresSink._lock")
STORED = struck("rows and position are written, not committed", f"{_SINK}:PostgresSink._store")
COMPUTED = struck("the step is computed, nothing is written", f"{_SINK}:PostgresSink.deliver", BEFORE)
OVER_ITS_TIME = struck(
    "a transaction that the server ends after 2 s", f"{_SINK}:PostgresSink._store", values={f"{_SINK}:STILL_S": 2}
)
IMPATIENT = struck("nothing", f"{_SINK}:PostgresSink.deliver", count=0, values={f"{_SINK}:WAIT_S": 2.0})
STRIKES = (
    COMPUTED,
    LOCKED,
    struck("the rows are written, the position is not", f"{_SINK}:PostgresSink._write_what_fits"),
    STORED,
    struck("the step is committed", f"{_SINK}:PostgresSink.deliver"),
    *NOTED,
)
ROWS = """
SELECT (extract(epoch FROM window_start) * 1000)::bigint, (extract(epoch FROM window_end) * 1000)::bigint, k, n, total, top
FROM {}
"""
SINKS = ("killed", "raced", "overtaken")
CREATED = """
CREATE TABLE changes (place text, operation text, key text);
CREATE FUNCTION note_change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO changes VALUES (TG_TABLE_NAME, TG_OP, to_jsonb(coalesce(NEW, OLD))::text); RETURN NULL; END $$;
CREATE FUNCTION watch() RETURNS event_trigger LANGUAGE plpgsql AS $$ DECLARE made record; BEGIN
  FOR made IN SELECT * FROM pg_event_trigger_ddl_commands() WHERE object_type = 'table' AND object_identity LIKE 'public.out\\_%' LOOP
    EXECUTE format('CREATE TRIGGER noted AFTER INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW EXECUTE FUNCTION note_change()',
                   made.object_identity);
  END LOOP; END $$;
CREATE EVENT TRIGGER watched ON ddl_command_end WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION watch();
"""
"""Each table of a sink gets a trigger that notes every change of a row, in the transaction of the change."""


@case(
    "F58",
    "a PostgreSQL sink: deliverers killed at every step, two at once, one stopped; no answer to COMMIT: each row changed once",
    kills=1 + len(STRIKES) + 2,
    proves=("guarantees.md#postgresql-sink", "failure-modes.md#delivery"),
)
def postgres_sink(lab: Lab) -> None:
    """The table has every row that is served, and each was inserted once and never changed."""
    why = missing()
    if why is not None:
        raise LabError(why)
    address = lab.use(loopback_server())
    proxy = lab.use(FaultProxy(port_of(address)))
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(CREATED)
    lab.variables[VARIABLE] = address_at(proxy.port)
    define_sinks(lab, {name: _sink(name) for name in SINKS})
    stream(lab, 300)
    killed, raced, overtaken = (SinkRun(lab, name, partial(_look, address, name)) for name in SINKS)
    killed.kill(OPENED)
    shuffled(
        lab,
        *(partial(killed.kill, strike) for strike in STRIKES),
        partial(_killed_at_the_commit, killed, proxy, lose=True),
        partial(_killed_at_the_commit, killed, proxy, lose=False),
        partial(_no_answer, killed, proxy, lose=True),
        partial(_no_answer, killed, proxy, lose=False),
        partial(killed.stand_still, OVER_ITS_TIME, STILL_S),
    )
    raced.race()
    overtaken.overtake(COMPUTED)
    stream(lab, 100, closing=True)
    for run in (killed, raced, overtaken):
        run.finish()


def _sink(name: str) -> dict[str, object]:
    return {"to": "postgres", "table": f"out_{name}", "dsn_env": VARIABLE, "guarantee": "effectively_once"}


def _look(address: str, name: str, served: dict[Place, Values]) -> Holding:
    table = f"out_{name}"
    with psycopg.connect(address) as connection:
        found = connection.execute("SELECT to_regclass(%s)", (table,)).fetchone()
        if found is None or found[0] is None:
            return judge_rows([], [], served)
        rows = connection.execute(sql.SQL(ROWS).format(sql.Identifier(table))).fetchall()
        changes = connection.execute(
            "SELECT operation, (key::jsonb ->> 'window_start') || ' ' || (key::jsonb ->> 'k') FROM changes WHERE place = %s",
            (table,),
        ).fetchall()
    return judge_rows(rows, changes, served)


def _killed_at_the_commit(run: SinkRun, proxy: FaultProxy, *, lose: bool) -> None:
    """All of the step is at the server; COMMIT reaches it or does not, and nobody waits for the answer."""
    run.kill_at("COMMIT was lost" if lose else "COMMIT was received", proxy, commit_of_a_step(), lose=lose)


def _no_answer(run: SinkRun, proxy: FaultProxy, *, lose: bool) -> None:
    """COMMIT reaches the server or does not; no answer comes, and the deliverer ends without knowing the outcome."""
    commit = commit_of_a_step()
    proxy.swallow, proxy.lose = commit, lose
    run.refused("COMMIT was lost" if lose else "the answer to COMMIT was lost", IMPATIENT)
    proxy.swallow = None
    require(commit.seen.is_set(), f"nothing was committed: {command_log(run.lab)}")
