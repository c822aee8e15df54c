"""Whether a Kafka broker can be reached at all: asked before a command waits for an answer that cannot come.

Kafka's client retries a refused connection until its time is over: twenty seconds, for a broker that is not even started. Here each
address gets one connection and one question that every broker answers before a login: ApiVersions, or over TLS a ClientHello. The
first answer of a broker counts, whatever it says; the client itself finds out what is wrong with it.

- A closed port, or a name that nobody knows: it is down, as soon as that is known.
- No connection, or no answer, within `WITHIN_S`: it is silent. A lost packet or a pause of a broker's garbage collector can look the
  same, so the message says how long was waited: a person who sees it repeats the command. Nothing that runs unattended asks here.
- An answer that is not Kafka's, without TLS: a web server or a proxy, or a listener that wants TLS. The client would wait for it, too.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import struct
import threading
from collections.abc import Iterator

from rivertwice.core import Deadline, ServiceError, Settings, is_one_command

WITHIN_S = 1.0
_NAME_S = 0.2
"""So much longer a name may take: its lookup cannot be interrupted, and the others' faults are said by then."""
_LEAST_S = 0.05
_CLIENT = b"rivertwice"
_API_VERSIONS = 18
_NUMBER = struct.pack(">i", 1)
"""Of the question; its answer repeats it."""
_ANSWER_BYTES = 8
_REACHED: set[str] = set()
"""Addresses that answered in this process; they are not asked again."""
_PERSONS: list[bool] = []


@contextlib.contextmanager
def asked_by_a_person() -> Iterator[None]:
    """For the block, ask as a command of a person does, in a process that lives on: the engine, which runs one verb after the other."""
    _REACHED.clear()
    _PERSONS.append(True)
    try:
        yield
    finally:
        _PERSONS.pop()


def require_broker(settings: Settings) -> None:
    """In a command of a person, check that some broker answers; elsewhere do nothing: a stream waits for its broker.

    Raises:
        ServiceError: none does.
        ConfigError: no address is known.
    """
    if not (is_one_command() or _PERSONS) or settings.bootstrap_servers() in _REACHED:
        return
    silence = find_silence(settings)
    if silence is not None:
        remedy = (
            "start the embedded broker with `rivertwice up`"
            if settings.bootstrap is None
            else "start it, or correct RIVERTWICE_BOOTSTRAP (or `kafka` in rivertwice.yaml)"
        )
        message = f"Kafka does not answer: {silence}; {remedy}"
        raise ServiceError(message)
    _REACHED.add(settings.bootstrap_servers())


def find_silence(settings: Settings, *, within_s: float = WITHIN_S) -> str | None:
    """Return why no broker answers, for each address; None as soon as one does.

    Raises:
        ConfigError: no address is known.
    """
    addresses = [each.strip() for each in settings.bootstrap_servers().split(",")]
    is_tls = settings.kafka.protocol.endswith("SSL")
    answers: queue.SimpleQueue[tuple[str, str | None]] = queue.SimpleQueue()

    def ask(address: str) -> None:
        answers.put((address, _find_fault(address, _hello(address) if is_tls else _question(), within_s)))

    for address in addresses:  # threads, because a name that is looked up cannot be interrupted
        threading.Thread(target=ask, args=(address,), daemon=True).start()
    deadline = Deadline.after(within_s + _NAME_S)
    faults = dict.fromkeys(addresses, f"its name is not known after {within_s:g} s")
    for _ in addresses:
        try:
            address, fault = answers.get(timeout=deadline.left())
        except queue.Empty:
            break
        if fault is None:
            return None
        faults[address] = fault
    return "; ".join(f"{address}: {fault}" for address, fault in faults.items())


def _find_fault(address: str, question: bytes, within_s: float) -> str | None:
    """Return why an address does not answer, or None if it does."""
    host, _, port = address.rpartition(":")
    deadline = Deadline.after(within_s)
    try:
        connection = socket.create_connection((host.strip("[]"), int(port)), timeout=within_s)
    except TimeoutError:
        return f"no connection within {within_s:g} s"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    with connection:
        connection.settimeout(max(deadline.left(), _LEAST_S))
        try:
            connection.sendall(question)
            return _find_fault_of(connection, is_kafka=question == _question())
        except TimeoutError:
            return f"it accepts connections, but answers nothing within {within_s:g} s"
        except OSError as error:
            return (error.strerror or str(error)).lower()


def _find_fault_of(connection: socket.socket, *, is_kafka: bool) -> str | None:
    """Return what is wrong with the answer to a question; over TLS any byte is one. Kafka's has the question's number after its length."""
    answer = b""
    while len(answer) < (_ANSWER_BYTES if is_kafka else 1):
        received = connection.recv(_ANSWER_BYTES - len(answer))
        if not received:
            break
        answer += received
    if not answer:
        return "the connection was closed without an answer"
    if is_kafka and answer[4:] != _NUMBER:
        return "what answers there is not a Kafka broker without TLS: another service, or a listener that wants TLS (RIVERTWICE_KAFKA_PROTOCOL)"
    return None


def _question() -> bytes:
    """Return an ApiVersions request (version 0): length, key, version, correlation id, name of the client."""
    request = struct.pack(">hh", _API_VERSIONS, 0) + _NUMBER + struct.pack(">h", len(_CLIENT)) + _CLIENT
    return struct.pack(">i", len(request)) + request


def _hello(address: str) -> bytes:
    """Return the first message of a TLS handshake; nothing is checked, because no more is sent."""
    import ssl  # only for brokers with TLS

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    handshake = context.wrap_bio(incoming, outgoing, server_hostname=address.rpartition(":")[0].strip("[]"))
    with contextlib.suppress(ssl.SSLWantReadError):
        handshake.do_handshake()
    return outgoing.read()
