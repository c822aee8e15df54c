"""A TCP proxy that misbehaves on request: slow, sliced, reset, silent, or late with one request of Kafka.

It runs in a thread of the lab's process.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType

from rivertwice.core.settings import Settings
from rivertwice.local.broker import start_broker, stop_broker


@dataclass(frozen=True)
class Weather:
    """How the proxy passes bytes on.

    Attributes:
        latency_s: each piece waits so long, in both directions.
        slice_bytes: pieces are cut to so many bytes; 0 leaves them whole.
        silent: pieces are taken and never passed on, as by a host that vanished.
        refuse: new connections are closed at once.
    """

    latency_s: float = 0.0
    slice_bytes: int = 0
    silent: bool = False
    refuse: bool = False


CLEAR = Weather()
END_TXN, PRODUCE = 26, 0  # keys of requests in Kafka's protocol


class Swallow:
    """For `FaultProxy.swallow`: the first piece of which `is_it` is true.

    Attributes:
        seen: whether it came.
    """

    def __init__(self, is_it: Callable[[bytes], bool]) -> None:
        """Nothing has come yet."""
        self._is_it = is_it
        self.seen = threading.Event()

    def __call__(self, piece: bytes) -> bool:
        """Say whether this piece is the one."""
        if self.seen.is_set() or not self._is_it(piece):
            return False
        self.seen.set()
        return True


def asks_for(key: int) -> Callable[[bytes], bool]:
    """Return a test of a piece that begins with a request of Kafka: whether a request in it has the key."""
    return lambda piece: key in request_keys(piece)


def request_keys(piece: bytes) -> list[int]:
    """Return the keys of the requests of Kafka that begin in a piece, the first of them at its start."""
    keys, at = [], 0
    while at + 6 <= len(piece):
        keys.append(int.from_bytes(piece[at + 4 : at + 6]))
        at += 4 + int.from_bytes(piece[at : at + 4])
    return keys


class LateRequest:
    """One request of Kafka that the network delays; give it to `FaultProxy.late`.

    The first request of kind `key` is kept back, and its client gets a reset, so that it sends the request again on another
    connection. The one that was kept reaches the broker, on its old connection, as soon as `when` is true of a later request.

    Attributes:
        arrived: whether it has reached the broker.
    """

    def __init__(self, key: int, when: Callable[[int, int], bool]) -> None:
        """Take the kind, and `when`: a function of a request's kind and of how many of the kept kind came after the kept one."""
        self.key = key
        self.when = when
        self.again = 0
        self.arrived = threading.Event()
        self.kept: tuple[bytes, asyncio.StreamWriter] | None = None


class FaultProxy:
    """Listens on a loopback port and passes bytes on to another; `weather` may change at any time.

    Attributes:
        port: the port it listens on.
        target_port: loopback port of the real service.
        weather: how bytes are passed on now.
        connections: accepted so far.
        swallow: is passed each piece that a client sends; once it returns True, that connection's server is not heard any more. With
            `lose`, it gets nothing more either, from that piece on.
        late: a request of Kafka that is delayed, if there is one; connections are then understood as Kafka's.
    """

    def __init__(self, target_port: int = 0) -> None:
        """Create the proxy; it listens only inside `with`."""
        self.port = 0
        self.target_port = target_port
        self.weather = CLEAR
        self.connections = 0
        self.swallow: Callable[[bytes], bool] | None = None
        self.lose = False
        self.late: LateRequest | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    def __enter__(self) -> FaultProxy:
        """Listen."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop listening and drop every connection."""
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def reset(self) -> int:
        """Abort every open connection (TCP reset); return how many there were."""
        return asyncio.run_coroutine_threadsafe(self._abort(), self._loop).result(10)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def _stop(self) -> None:
        if self._server is not None:
            self._server.close()
        await self._abort()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        if tasks:
            await asyncio.wait(tasks, timeout=5.0)

    async def _abort(self) -> int:
        writers = list(self._open)
        for writer in writers:
            _reset(writer)
        return len(writers) // 2

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.weather.refuse:
            _reset(writer)
            return
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target_port)
        except OSError:
            _reset(writer)
            return
        self._open |= {writer, far_writer}
        deaf = asyncio.Event()
        if self.late is None:
            requests = self._pass_on(reader, far_writer, deaf)
        else:
            requests = self._pass_requests(self.late, reader, writer, far_writer)
        try:
            await asyncio.gather(requests, self._pass_on(far_reader, writer, deaf, answers=True))
        finally:
            self._open -= {writer, far_writer}

    async def _pass_requests(
        self,
        late: LateRequest,
        reader: asyncio.StreamReader,
        client: asyncio.StreamWriter,
        broker: asyncio.StreamWriter,
    ) -> None:
        """Pass whole requests on, except the one that is late; its connection to the broker stays open."""
        with contextlib.suppress(OSError):
            async for key, request in _requests(reader):
                if late.kept is None and key == late.key:
                    late.kept = (request, broker)
                    self._open.discard(client)
                    _reset(client)
                    return
                if late.kept is not None and not late.arrived.is_set():
                    late.again += key == late.key
                    if late.when(key, late.again):
                        kept, old = late.kept
                        old.write(kept)
                        await old.drain()
                        late.arrived.set()
                        await asyncio.sleep(0.3)  # the broker works on it, before it gets the next one
                broker.write(request)
                await broker.drain()
        with contextlib.suppress(OSError):
            broker.close()

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, deaf: asyncio.Event, *, answers: bool = False
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                weather = self.weather
                if not answers and self.swallow is not None and self.swallow(data):
                    deaf.set()
                if weather.silent or (deaf.is_set() and (answers or self.lose)):
                    continue
                size = weather.slice_bytes or len(data)
                for begin in range(0, len(data), size):
                    if weather.latency_s:
                        await asyncio.sleep(weather.latency_s)
                    writer.write(data[begin : begin + size])
                    await writer.drain()
        with contextlib.suppress(OSError):
            writer.close()


@contextmanager
def proxied_broker(own: Settings, extra: Mapping[str, str] | None = None) -> Iterator[FaultProxy]:
    """Run a broker for the block that all clients reach through a proxy.

    Args:
        own: its home.
        extra: properties besides its own.
    """
    with FaultProxy() as proxy:
        broker = start_broker(own, advertised_port=proxy.port, extra=extra)
        try:
            proxy.target_port = int(broker.bootstrap.rpartition(":")[2])
            yield proxy
        finally:
            stop_broker(own)


def _reset(writer: asyncio.StreamWriter) -> None:
    """Drop a connection so that the other side gets a reset, not an end."""
    endpoint = writer.get_extra_info("socket")
    if endpoint is not None:
        with contextlib.suppress(OSError):
            endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _requests(reader: asyncio.StreamReader) -> AsyncIterator[tuple[int, bytes]]:
    """Yield the key and the bytes of each request of a connection to Kafka, until it ends."""
    with contextlib.suppress(asyncio.IncompleteReadError):
        while True:
            head = await reader.readexactly(4)
            body = await reader.readexactly(int.from_bytes(head))
            yield int.from_bytes(body[:2]), head + body
