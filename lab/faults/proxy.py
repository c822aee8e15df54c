"""A TCP proxy that misbehaves on request: slow, sliced, reset, silent. It runs in a thread of the lab's process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from dataclasses import dataclass
from types import TracebackType


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


class FaultProxy:
    """Listens on a loopback port and passes bytes on to another; `weather` may change at any time.

    Attributes:
        port: the port it listens on.
        target_port: loopback port of the real service.
        weather: how bytes are passed on now.
        connections: accepted so far.
    """

    def __init__(self, target_port: int = 0) -> None:
        """Create the proxy; it listens only inside `with`."""
        self.port = 0
        self.target_port = target_port
        self.weather = CLEAR
        self.connections = 0
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
        try:
            await asyncio.gather(self._pass_on(reader, far_writer), self._pass_on(far_reader, writer))
        finally:
            self._open -= {writer, far_writer}

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                weather = self.weather
                if weather.silent:
                    continue
                size = weather.slice_bytes or len(data)
                for begin in range(0, len(data), size):
                    if weather.latency_s:
                        await asyncio.sleep(weather.latency_s)
                    writer.write(data[begin : begin + size])
                    await writer.drain()
        with contextlib.suppress(OSError):
            writer.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Drop a connection so that the other side gets a reset, not an end."""
    endpoint = writer.get_extra_info("socket")
    if endpoint is not None:
        with contextlib.suppress(OSError):
            endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
