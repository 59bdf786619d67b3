"""A client of the explorer that may forge every header."""

import http.client
import json
import time
from urllib.parse import urlsplit

HOSTILE = "<script>alert(1)</script>"


class Client:
    """Requests to one explorer, with or without what its page sends along."""

    def __init__(self, window):
        self.explorer, self.place = window.explorer, urlsplit(window.address)

    def ask(self, method, path, body=None, *, token=True, **headers):
        """Status, headers and body of one request."""
        connection = http.client.HTTPConnection(self.place.hostname, self.place.port, timeout=30)
        sent = {"X-Keyhole-Token": self.explorer.token} if token else {}
        text = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection.request(
            method,
            path,
            text,
            sent | {name.replace("_", "-"): value for name, value in headers.items()},
        )
        answer = connection.getresponse()
        seen = answer.status, dict(answer.getheaders()), answer.read()
        connection.close()
        return seen

    def get(self, path):
        status, _, body = self.ask("GET", path)
        return status, json.loads(body)

    def post(self, path, data, **more):
        status, _, body = self.ask("POST", path, data, **more)
        return status, json.loads(body)

    def start(self, kind, **fields):
        return self.post("/api/jobs", {"kind": kind, "fields": fields})

    def finished(self, kind, **fields):
        """A job, followed to its end."""
        status, job = self.start(kind, **fields)
        assert status == 202, job
        for _ in range(600):
            _, job = self.get(f"/api/jobs/{job['id']}")
            if job["state"] != "running":
                return job
            time.sleep(0.05)
        raise AssertionError(f"{kind} did not end")
