"""What lies beyond the tables: Kafka's transactions, a database, and the network between.

A request is on its way until it arrives; its sender, if it still waits, has the answer in the same step. A request that is delayed has
lost its sender: the client sends it again, or is dead, and the old copy arrives later or never.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lab.model.judge_sinks import Reader
from rivertwice.deliver.model import DeliveredRecord, Position

EPOCH, SEND, COMMIT = "epoch", "send", "commit"
FENCED, INVALID, TAKEN = "fenced", "invalid state", "taken"


@dataclass
class Request:
    """A request on its way.

    Attributes:
        sender: process that waits for the answer; None once it was delayed, or its sender is dead.
        epoch: of the producer, or number of the database's session.
        sequence: number of a batch of records within its epoch: a broker takes each once.
    """

    sink: str
    what: str
    sender: int | None
    epoch: int = 0
    sequence: int = 0
    records: tuple[DeliveredRecord, ...] = ()
    position: Position | None = None
    answer: int | str | None = None


@dataclass
class Broker:
    """Kafka, as far as one transactional id is concerned: what librdkafka 2.16 speaks, which is EndTxn v1 without KIP-890.

    A request to end a transaction names the producer's epoch, not the transaction: it ends whatever is open under its epoch. A new epoch
    aborts what is open and fences all earlier epochs, on the partitions as well.

    Attributes:
        unfinished: records of the open transaction; None: none is open. ended: how the last one of this epoch ended.
        sent: positions that were sent by anybody, committed or not: the end of the topic of positions.
    """

    epoch: int = 0
    unfinished: list[DeliveredRecord] | None = None
    unfinished_position: Position | None = None
    ended: str = ""
    sequences: set[int] = field(default_factory=set)
    sent: int = 0
    position: Position | None = None
    reader: Reader = field(default_factory=Reader)

    def handle(self, request: Request) -> int | str:
        """Do what a request asks, and return the answer."""
        if request.what == EPOCH:
            self.begin_epoch()
            return self.epoch
        if request.epoch != self.epoch:
            return FENCED
        if request.what == SEND:
            return self._take(request)
        if self.unfinished is None:
            return TAKEN if self.ended == COMMIT else INVALID
        records, position = self.unfinished, self.unfinished_position
        self._close(COMMIT)
        self.position = position or self.position
        self.reader.commits(records, position)
        return TAKEN

    def _take(self, request: Request) -> str:
        if request.sequence in self.sequences:
            return TAKEN
        self.sequences.add(request.sequence)
        self.unfinished = [*(self.unfinished or []), *request.records]
        if request.position is not None:
            self.unfinished_position = request.position
            self.sent += 1
        return TAKEN

    def _close(self, ended: str) -> None:
        self.unfinished, self.unfinished_position, self.ended = None, None, ended

    def begin_epoch(self) -> None:
        """Abort what is open, and fence its producer; Kafka does so by itself if a transaction stays open for too long."""
        self._close("")
        self.epoch += 1
        self.sequences.clear()


@dataclass
class Session:
    """A transaction of the database: what it has written, and whether the server has ended it."""

    number: int
    sender: int | None
    records: tuple[DeliveredRecord, ...] = ()
    position: Position | None = None
    is_over: bool = False


@dataclass
class Database:
    """PostgreSQL: the position's row is locked by one session at a time; rows and position count once it has committed."""

    position: Position | None = None
    holder: Session | None = None
    sessions: int = 0
    reader: Reader = field(default_factory=Reader)

    def lock(self, sender: int) -> Session | None:
        """Begin a transaction and lock the position's row; None while another session has it."""
        if self.holder is not None:
            return None
        self.sessions += 1
        self.holder = Session(self.sessions, sender)
        return self.holder

    def handle(self, request: Request) -> str:
        """Commit a session."""
        session = self.holder
        if session is None or session.number != request.epoch:
            return INVALID
        if session.records or session.position is not None:
            self.position = session.position or self.position
            self.reader.commits(session.records, session.position)
        self.roll_back()
        return TAKEN

    def roll_back(self) -> None:
        """End the session that has the lock."""
        if self.holder is not None:
            self.holder.is_over = True
            self.holder = None


@dataclass
class Sinks:
    """All sinks of a pipeline, and the requests that are on their way."""

    kafka: Broker = field(default_factory=Broker)
    postgres: Database = field(default_factory=Database)
    network: list[Request] = field(default_factory=list)

    def send(self, request: Request) -> Request:
        """Let a request be on its way."""
        self.network.append(request)
        return request

    def arrive(self, request: Request) -> None:
        """Let a request arrive; who waits for it has the answer."""
        self.network.remove(request)
        request.answer = getattr(self, request.sink).handle(request)
        self.network = [each for each in self.network if not self._is_idle(each)]

    def _is_idle(self, request: Request) -> bool:
        """Say whether a delayed request of an earlier epoch can do nothing any more."""
        is_old = request.sink == "kafka" and request.what != EPOCH and request.epoch < self.kafka.epoch
        return request.sender is None and is_old

    def delay(self, request: Request) -> None:
        """Let a request lose its sender, which sends it again."""
        request.sender = None

    def forget(self, sender: int) -> None:
        """Let a process be gone: its requests are still on their way, and its transaction is open."""
        for request in self.network:
            if request.sender == sender:
                request.sender = None
        if self.postgres.holder is not None and self.postgres.holder.sender == sender:
            self.postgres.holder.sender = None

    def late(self) -> Sequence[Request]:
        """Return the requests that have no sender any more."""
        return [request for request in self.network if request.sender is None]

    def time_out(self, sink: str) -> None:
        """Let the server end a transaction that stays open for too long."""
        if sink == "postgres":
            self.postgres.roll_back()
        elif self.kafka.unfinished is not None:
            self.kafka.begin_epoch()
            self.network = [each for each in self.network if not self._is_idle(each)]
