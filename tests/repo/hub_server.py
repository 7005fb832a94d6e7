"""A loopback server that speaks the hub's file routes and counts what it serves.

Routes: `/api/models/{id}[/revision/{revision}]` and `/{id}/resolve/{revision}/{path}` (HEAD, GET, Range), with the
hub's headers (X-Repo-Commit, ETag, X-Linked-Size, X-Linked-Etag, X-Error-Code). Weight files can be redirected to a
second origin, as the hub does to its CDN.
"""

import hashlib
import json
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" * 6 + "abcd"


@dataclass
class HubRepo:
    """One repo on the server: path -> content, and how the server behaves about it."""

    files: dict[str, bytes]
    revisions: tuple[str, ...] = ("main", COMMIT)
    gated: bool = False
    failures: int = 0  # this many requests are answered with 503 first
    ranges: bool = True  # whether Range is honoured
    listed_sizes: dict[str, int] = field(default_factory=dict)  # sizes that the API lies about


@dataclass
class Hub:
    """The running server: its repos, and a record of what it was asked and what it sent."""

    repos: dict[str, HubRepo]
    url: str = ""
    cdn_url: str = ""  # where weight files are redirected to; "" serves them directly
    sent: Counter[str] = field(default_factory=Counter)  # path -> bytes of bodies
    ranges: list[tuple[str, str | None]] = field(default_factory=list)  # (path, Range) of each GET of a file
    authorizations: dict[str, set[str]] = field(default_factory=dict)  # "hub" or "cdn" -> Authorization values seen
    requests: Counter[str] = field(default_factory=Counter)  # "METHOD route"


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # a client may hang up once it has read enough
            super().handle_error(request, client_address)  # type: ignore[arg-type]


@contextmanager
def serve(repos: dict[str, HubRepo], *, cdn: bool = False) -> Iterator[Hub]:
    """Serve `repos` on 127.0.0.1 until the context ends; with `cdn`, weight files come from a second port."""
    hub = Hub(repos)
    servers = [_Server(("127.0.0.1", 0), _handler(hub, role)) for role in (["hub", "cdn"] if cdn else ["hub"])]
    threads = [threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}) for server in servers]
    hub.url = f"http://127.0.0.1:{servers[0].server_port}"
    hub.cdn_url = f"http://127.0.0.1:{servers[1].server_port}" if cdn else ""
    for thread in threads:
        thread.start()
    try:
        yield hub
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            server.server_close()
            thread.join(timeout=10)


def _handler(hub: Hub, role: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            """Keep the test output quiet."""

        def do_HEAD(self) -> None:
            self._answer()

        def do_GET(self) -> None:
            self._answer()

        def _answer(self) -> None:
            route = unquote(urlsplit(self.path).path)
            hub.authorizations.setdefault(role, set()).add(self.headers.get("Authorization", ""))
            hub.requests[f"{self.command} {route}"] += 1
            if route.startswith("/api/models/"):
                repo_id, _, revision = route.removeprefix("/api/models/").partition("/revision/")
                self._api(repo_id, revision or "main")
            elif "/resolve/" in route:
                repo_id, _, rest = route.lstrip("/").partition("/resolve/")
                revision, _, path = rest.partition("/")
                self._file(repo_id, revision, path)
            else:
                self._error(404, "RepoNotFound", "Not Found")

        def _repo(self, repo_id: str, revision: str) -> HubRepo | None:
            repo = hub.repos.get(repo_id)
            if repo is None:
                self._error(401, "RepoNotFound", "Invalid username or password.")
            elif repo.failures > 0:
                repo.failures -= 1
                self._error(503, "", "busy")
            elif revision not in repo.revisions:
                self._error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
            else:
                return repo
            return None

        def _api(self, repo_id: str, revision: str) -> None:
            repo = self._repo(repo_id, revision)
            if repo is None:
                return
            siblings = [
                {"rfilename": path, "size": repo.listed_sizes.get(path, len(content)), "blobId": path}
                for path, content in repo.files.items()
            ]
            info = {"id": repo_id, "modelId": repo_id, "sha": COMMIT, "siblings": siblings, "gated": repo.gated}
            self._send(200, json.dumps(info).encode(), {"Content-Type": "application/json"})

        def _file(self, repo_id: str, revision: str, path: str) -> None:
            repo = self._repo(repo_id, revision)
            if repo is None:
                return
            if repo.gated:
                self._error(403, "GatedRepo", f"Access to model {repo_id} is restricted.")
                return
            if path not in repo.files:
                self._error(404, "EntryNotFound", "Entry not found")
                return
            content = repo.files[path]
            etag = f'"{hashlib.sha256(content).hexdigest()}"'
            headers = {"X-Repo-Commit": COMMIT, "ETag": etag, "Accept-Ranges": "bytes"}
            if path.endswith(".safetensors"):
                headers |= {"X-Linked-Size": str(len(content)), "X-Linked-Etag": etag}
                if role == "hub" and hub.cdn_url:
                    self._send(302, b"", headers | {"Location": hub.cdn_url + self.path})
                    return
            asked = self.headers.get("Range")
            if self.command == "GET":
                hub.ranges.append((path, asked))
            if asked is None or not repo.ranges:
                self._send(200, content, headers, path)
                return
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start, end = int(first), min(int(last or len(content) - 1) + 1, len(content))
            if start >= end:
                self._error(416, "", "range not satisfiable")
                return
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(content)}"
            self._send(206, content[start:end], headers, path)

        def _error(self, status: int, code: str, message: str) -> None:
            headers = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
            self._send(status, json.dumps({"error": message}).encode(), headers)

        def _send(self, status: int, body: bytes, headers: dict[str, str], path: str = "") -> None:
            self.send_response(status)
            for name, value in (headers | {"Content-Length": str(len(body))}).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                try:
                    self.wfile.write(body)
                except (BrokenPipeError, ConnectionResetError):  # the client has read enough
                    self.close_connection = True
                hub.sent[path] += len(body)

    return Handler
