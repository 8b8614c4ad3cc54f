"""A Hub of one machine: what `push_to_hub` asks for, answered over HTTP, so that the real client is what is tested."""

import base64
import hashlib
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


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
    """

    def __enter__(self):
        hub = self
        self.files: dict[str, bytes] = {}
        self.tokens: set[str] = set()

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
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if "/preupload/" in self.path:
                    files = json.loads(body)["files"]
                    modes = {"uploadMode": "regular", "shouldIgnore": False}
                    self.answer({"files": [modes | {"path": file["path"]} for file in files]})
                elif "/commit/" in self.path:
                    hub.commit(body)
                    self.answer({"commitUrl": f"{hub.url}/someone/model/commit/0", "commitOid": "0" * 40})
                elif self.path.endswith("/api/repos/create"):
                    self.answer({"url": f"{hub.url}/someone/model", "name": "someone/model"})
                else:
                    self.answer({})

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
        self.tokens.add(str(request.headers.get("Authorization")).removeprefix("Bearer "))

    def commit(self, body: bytes):
        for line in body.decode().splitlines():
            item = json.loads(line)
            if item["key"] == "file":
                self.files[item["value"]["path"]] = base64.b64decode(item["value"]["content"])

    def __exit__(self, *error):
        self.server.shutdown()
        self.server.server_close()
