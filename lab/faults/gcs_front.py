"""What fake-gcs-server lacks of Google's XML API, in front of it: the PUT of an object, by which obstore and delta-rs write.

It translates and decides nothing: an upload with a condition becomes the JSON API's, whose `ifGenerationMatch` the server checks under
its lock. Reads, deletions and listings are forwarded; of a listing the front takes `start-after`, which the server ignores. Loopback
only, for tests. It is a separate process, `python -m lab.faults.gcs_front TARGET`, because delta-rs lets no other thread of Python run
while it waits for some answers. The request of fake-gcs-server for it is https://github.com/fsouza/fake-gcs-server/issues/331.
"""

from __future__ import annotations

import http.client
import json
import re
import sys
import uuid
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit
from xml.etree import ElementTree

_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "host", "date"}
_META = "x-goog-meta-"
Answer = tuple[int, Mapping[str, str], bytes]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64
    target: str
    parts: dict[str, dict[int, bytes]]

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore it: clients of these tests go away."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def _serve(self) -> None:
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        bucket, _, key = url.path.lstrip("/").partition("/")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if not key and "list-type" in query:
            self._answer(self._list(bucket, query))
        elif "uploads" in query or "uploadId" in query:
            self._answer(self._part(bucket, unquote(key), query, body))
        elif self.command == "PUT" and "x-goog-copy-source" in self.headers:
            self._answer(self._copy(bucket, unquote(key)))
        elif self.command == "PUT":
            self._answer(self._put(bucket, unquote(key), body))
        else:
            self._answer(self._ask(self.command, self.path, self._headers(), body))

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve  # noqa: N815 (the library's names)

    def _headers(self) -> dict[str, str]:
        return {name: value for name, value in self.headers.items() if name.lower() not in _HOP}

    def _condition(self) -> dict[str, str]:
        generation = self.headers.get("x-goog-if-generation-match")
        return {} if generation is None else {"ifGenerationMatch": generation}

    def _put(self, bucket: str, key: str, data: bytes) -> Answer:
        meta = {
            name.lower()[len(_META) :]: value for name, value in self.headers.items() if name.lower().startswith(_META)
        }
        described = {"name": key, "contentType": self.headers.get("Content-Type", ""), "metadata": meta}
        edge = uuid.uuid4().hex
        body = b"".join(
            [
                f"--{edge}\r\nContent-Type: application/json\r\n\r\n{json.dumps(described)}\r\n".encode(),
                f"--{edge}\r\nContent-Type: application/octet-stream\r\n\r\n".encode(),
                data,
                f"\r\n--{edge}--\r\n".encode(),
            ]
        )
        query = urlencode({"uploadType": "multipart", **self._condition()})
        kind = {"Content-Type": f"multipart/related; boundary={edge}"}
        return _as_xml(self._ask("POST", f"/upload/storage/v1/b/{bucket}/o?{query}", kind, body))

    def _copy(self, bucket: str, key: str) -> Answer:
        source_bucket, _, source = unquote(self.headers["x-goog-copy-source"]).lstrip("/").partition("/")
        path = f"/storage/v1/b/{source_bucket}/o/{quote(source, safe='')}/rewriteTo/b/{bucket}/o/{quote(key, safe='')}"
        return _as_xml(
            self._ask("POST", f"{path}?{urlencode(self._condition())}", {"Content-Type": "application/json"}, b"{}")
        )

    def _part(self, bucket: str, key: str, query: Mapping[str, str], body: bytes) -> Answer:
        """Keep the parts of an upload until it is completed: then the object is written whole."""
        if "uploads" in query:
            made = uuid.uuid4().hex
            self.server.parts[made] = {}
            text = f"<Bucket>{bucket}</Bucket><Key>x</Key><UploadId>{made}</UploadId>"
            return 200, {}, f"<InitiateMultipartUploadResult>{text}</InitiateMultipartUploadResult>".encode()
        upload = query["uploadId"]
        if self.command == "PUT":
            self.server.parts[upload][int(query["partNumber"])] = body
            return 200, {"ETag": f'"{query["partNumber"]}"'}, b""
        kept = self.server.parts.pop(upload, {})
        if self.command == "DELETE":
            return 204, {}, b""
        numbers = [int(number) for number in re.findall(rb"<PartNumber>(\d+)</PartNumber>", body)]
        status, headers, data = self._put(bucket, key, b"".join(kept[number] for number in numbers))
        text = f"<Bucket>{bucket}</Bucket><Key>x</Key><Location>x</Location><ETag>{headers.get('ETag', '')}</ETag>"
        done = f"<CompleteMultipartUploadResult>{text}</CompleteMultipartUploadResult>".encode()
        return status, headers, done if status == 200 else data

    def _list(self, bucket: str, query: Mapping[str, str]) -> Answer:
        after = query.get("start-after", "")
        asked = {name: value for name, value in query.items() if name != "start-after"}
        status, headers, data = self._ask("GET", f"/{bucket}?{urlencode(asked)}", {}, b"")
        if status != 200 or not after:
            return status, headers, data
        root = ElementTree.fromstring(data)  # noqa: S314 (the answer of our own server)
        for entry in root.findall("Contents"):
            if (entry.findtext("Key") or "") <= after:
                root.remove(entry)
        return status, headers, ElementTree.tostring(root)

    def _ask(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        address = urlsplit(self.server.target)
        connection = http.client.HTTPConnection(address.hostname or "127.0.0.1", address.port, timeout=60)
        try:
            connection.request(method, path, body or None, {**headers, "Accept-Encoding": "identity"})
            answer = connection.getresponse()
            length = {"X-Length": answer.getheader("Content-Length", "0")} if method == "HEAD" else {}
            return answer.status, {**dict(answer.getheaders()), **length}, answer.read()
        finally:
            connection.close()

    def _answer(self, answer: Answer) -> None:
        status, headers, data = answer
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in {*_HOP, "x-length"}:
                self.send_header(name, value)
        self.send_header("Content-Length", headers.get("X-Length", str(len(data))))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the library's name)
        """Log nothing."""


def _as_xml(answer: Answer) -> Answer:
    """Return the JSON API's answer to a write as the XML API gives it. Pure."""
    status, _, data = answer
    if status != 200:
        return status, {}, data
    made = json.loads(data)
    made = made.get("resource", made)
    return 200, {"ETag": f'"{made["etag"]}"', "x-goog-generation": str(made["generation"])}, b""


if __name__ == "__main__":
    server = _Server(("127.0.0.1", 0), _Handler)
    server.target, server.parts = sys.argv[1], {}
    sys.stdout.write(f"http://127.0.0.1:{server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever()
