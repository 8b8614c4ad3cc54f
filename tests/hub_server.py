"""A Hub of one machine: what `push_to_hub` asks for, answered over HTTP, so that the real client is what is tested."""

import base64
import hashlib
import json
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

CREATE, COMMIT, LARGE = "POST /api/repos/create", "POST /api/models/.*/commit/", "PUT /large/"


class Hub:
    """
    Serves on a free port within a `with` block.

    Attributes:
        url (`str`):
            For `HF_ENDPOINT`.
        files (`dict[str, bytes]`):
            What was pushed, by path.
        tokens (`set[str]`):
            What the client said who it is.
        private (`set[str]`):
            Visibilities that a repository was asked to be made with.
        large (`str`):
            Pattern of the names of files that go by LFS.
        failures (`list[tuple[str, int | str, int]]`):
            What goes wrong: a pattern of method and path, then a status, `"drop"` for a connection that is dropped in
            the middle of the upload, or `"lose"` for an answer that is lost, then how many times.
        requests (`list[str]`):
            Method and path of each request.
    """

    def __init__(self, large: str = "$^", failures: list[tuple[str, int | str, int]] | None = None):
        self.large, self.failures = large, list(failures or [])

    def __enter__(self):
        hub = self
        self.files: dict[str, bytes] = {}
        self.tokens: set[str] = set()
        self.private: set[str] = set()
        self.stored: dict[str, bytes] = {}  # large files by their checksum
        self.requests: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self):
                self.look()

            def do_GET(self):
                hub.note(self)
                self.look()

            def look(self):
                name = self.path.partition("/resolve/")[2].partition("/")[2]
                if name:
                    self.send_file(hub.files.get(name))
                elif "someone/model" in self.path or "whoami" in self.path:
                    siblings = [{"rfilename": each} for each in hub.files]
                    self.answer({"id": "someone/model", "name": "someone", "sha": "0" * 40, "siblings": siblings})
                else:
                    self.answer({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})

            def send_file(self, content: bytes | None):
                if content is None:
                    self.answer({"error": "Entry not found"}, 404, {"X-Error-Code": "EntryNotFound"})
                    return
                self.send_response(200)
                checksum = hashlib.sha1(content).hexdigest()
                headers = {"ETag": f'"{checksum}"', "X-Repo-Commit": "0" * 40, "Content-Length": str(len(content))}
                for header in headers.items():
                    self.send_header(*header)
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(content)

            def do_POST(self):
                hub.note(self)
                failure = hub.next_failure(f"{self.command} {self.path}")
                if failure == "drop":
                    self.drop()
                    return
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if isinstance(failure, int):
                    self.answer({"error": f"so says the test: {failure}"}, failure)
                elif "/preupload/" in self.path:
                    self.answer({"files": [hub.mode(file["path"]) for file in json.loads(body)["files"]]})
                elif "/commit/" in self.path:
                    hub.commit(body)
                    if failure == "lose":
                        self.close_connection = True
                        return
                    self.answer({"commitUrl": f"{hub.url}/someone/model/commit/0", "commitOid": "0" * 40})
                elif self.path.endswith("/objects/batch"):
                    self.answer({"objects": [hub.place(item) for item in json.loads(body)["objects"]]})
                elif self.path.endswith("/api/repos/create"):
                    hub.private.add(json.loads(body).get("visibility"))
                    self.answer({"url": f"{hub.url}/someone/model", "name": "someone/model"})
                else:
                    self.answer({})

            def do_PUT(self):
                hub.requests.append(f"{self.command} {self.path}")
                failure = hub.next_failure(f"{self.command} {self.path}")
                if failure == "drop":
                    self.drop()
                    return
                content = self.rfile.read(int(self.headers["Content-Length"]))
                if failure is None:
                    hub.stored[hashlib.sha256(content).hexdigest()] = content
                self.answer({}, failure or 200)

            def drop(self):
                self.rfile.read(int(self.headers["Content-Length"]) // 2)
                self.close_connection = True

            def answer(self, content: dict, status: int = 200, headers: dict = {}):  # noqa: B006
                data = json.dumps(content).encode()
                self.send_response(status)
                for header in headers.items():
                    self.send_header(*header)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def note(self, request: BaseHTTPRequestHandler):
        self.requests.append(f"{request.command} {request.path}")
        if request.path != "/api/agent-harnesses":  # the client's own statistics, by nobody
            self.tokens.add(str(request.headers.get("Authorization")).removeprefix("Bearer "))

    def next_failure(self, request: str) -> int | str | None:
        for number, (pattern, what, times) in enumerate(self.failures):
            if times and re.match(pattern, request):
                self.failures[number] = (pattern, what, times - 1)
                return what
        return None

    def mode(self, name: str) -> dict:
        """How a file is to be sent, and what is there of it."""
        is_large = re.match(self.large, name)
        mode = {"path": name, "uploadMode": "lfs" if is_large else "regular", "shouldIgnore": False}
        content = self.files.get(name)
        if content is None:
            return mode
        blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        return mode | {"oid": hashlib.sha256(content).hexdigest() if is_large else blob}

    def place(self, item: dict) -> dict:
        """Where a large file is to be sent to; nowhere if it is there."""
        if item["oid"] in self.stored:
            return item
        return item | {"actions": {"upload": {"href": f"{self.url}/large/{item['oid']}"}}}

    def commit(self, body: bytes):
        for line in body.decode().splitlines():
            item = json.loads(line)
            if item["key"] == "file":
                self.files[item["value"]["path"]] = base64.b64decode(item["value"]["content"])
            elif item["key"] == "lfsFile":
                self.files[item["value"]["path"]] = self.stored[item["value"]["oid"]]
            elif item["key"] == "deletedFile":
                del self.files[item["value"]["path"]]

    def __exit__(self, *error):
        self.server.shutdown()
        self.server.server_close()
