"""A registry with one tiny image, as far as `docker pull` needs it, on this machine's loopback."""

import base64
import contextlib
import gzip
import hashlib
import http.server
import io
import json
import tarfile
import threading


def _digest(data):
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class Registry:
    def __init__(self, name="belljar-test/tiny", password=None):
        self.name = name
        self.password = password  # of the user "me"; None: anybody may pull
        self.asked = []  # paths
        layer = io.BytesIO()
        with tarfile.open(fileobj=layer, mode="w") as archive:
            member = tarfile.TarInfo("hello")
            member.size = 5
            archive.addfile(member, io.BytesIO(b"hello"))
        layer = layer.getvalue()
        packed = gzip.compress(layer, mtime=0)
        config = json.dumps(
            {
                "architecture": "amd64",
                "os": "linux",
                "config": {"Cmd": ["/hello"]},
                "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
            }
        ).encode()
        kind = "application/vnd.docker"
        self.manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": f"{kind}.distribution.manifest.v2+json",
                "config": {
                    "mediaType": f"{kind}.container.image.v1+json",
                    "size": len(config),
                    "digest": _digest(config),
                },
                "layers": [
                    {
                        "mediaType": f"{kind}.image.rootfs.diff.tar.gzip",
                        "size": len(packed),
                        "digest": _digest(packed),
                    }
                ],
            }
        ).encode()
        self.blobs = {_digest(config): config, _digest(packed): packed}

    @property
    def reference(self):
        return f"127.0.0.1:{self.port}/{self.name}:1"

    def answer(self, path, authorization):
        """Status, kind and content."""
        self.asked.append(path)
        if self.password is not None:
            wanted = base64.b64encode(f"me:{self.password}".encode()).decode()
            if authorization != f"Basic {wanted}":
                return 401, "application/json", b'{"errors": [{"code": "UNAUTHORIZED"}]}'
        if path == "/v2/":
            return 200, "application/json", b"{}"
        place, _, what = path.rpartition("/")
        if place == f"/v2/{self.name}/manifests" and what in ("1", _digest(self.manifest)):
            return 200, "application/vnd.docker.distribution.manifest.v2+json", self.manifest
        if place == f"/v2/{self.name}/blobs" and what in self.blobs:
            return 200, "application/octet-stream", self.blobs[what]
        return 404, "application/json", b'{"errors": [{"code": "MANIFEST_UNKNOWN"}]}'


@contextlib.contextmanager
def serve(**options):
    registry = Registry(**options)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            status, kind, content = registry.answer(
                self.path, self.headers.get("Authorization", "")
            )
            self.send_response(status)
            if status == 401:
                self.send_header("WWW-Authenticate", 'Basic realm="test"')
            self.send_header("Docker-Distribution-Api-Version", "registry/2.0")
            self.send_header("Docker-Content-Digest", _digest(content))
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        do_HEAD = do_GET

        def log_message(self, *args):
            """Not on the terminal."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        registry.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield registry
        finally:
            server.shutdown()
            thread.join()
