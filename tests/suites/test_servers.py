"""Servers as people write them, in the sandbox: reached by HTTP and by a WebSocket."""

import base64
import json
import os
import socket
import urllib.request

import pytest

from belljar import Environment, Sandbox

PATIENCE = 60.0  # seconds
FLASK = """
from flask import Flask, request
from flask_sock import Sock

app = Flask(__name__)
sock = Sock(app)

@app.post("/double")
def double():
    return {"result": 2 * request.json["value"]}

@sock.route("/echo")
def echo(ws):
    ws.send("welcome")
    while True:
        ws.send("echo " + ws.receive())

app.run("127.0.0.1", 5000)
"""


@pytest.fixture
def address(backend):
    packages = ["flask", "flask-sock"]
    with Sandbox(environment=Environment("servers", packages=packages)) as sandbox:
        sandbox.files.write("app.py", FLASK)
        sandbox.commands.start(["python", "app.py"])
        with sandbox.ports.forward(5000, timeout=PATIENCE) as address:
            yield address


def test_flask_answers_json(address):
    asked = urllib.request.Request(
        f"http://{address}/double",
        data=b'{"value": 21}',
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(asked, timeout=PATIENCE) as reply:
        assert json.load(reply) == {"result": 42}


class WebSocket:
    """A client for short texts."""

    def __init__(self, address, path):
        self._sock = socket.create_connection(("127.0.0.1", address.port), timeout=PATIENCE)
        self._file = self._sock.makefile("rb")
        key = base64.b64encode(os.urandom(16)).decode()
        lines = [
            f"GET {path} HTTP/1.1",
            f"Host: {address}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {key}",
            "Sec-WebSocket-Version: 13",
        ]
        self._sock.sendall("\r\n".join([*lines, "", ""]).encode())
        self.status = self._file.readline()
        while self._file.readline().strip():
            continue

    def send(self, text):
        data, mask = text.encode(), os.urandom(4)
        masked = bytes(byte ^ mask[n % 4] for n, byte in enumerate(data))
        self._sock.sendall(bytes([0x81, 0x80 | len(data)]) + mask + masked)

    def receive(self):
        _, size = self._file.read(2)
        return self._file.read(size).decode()

    def close(self):
        self._file.close()
        self._sock.close()


def test_a_websocket_stays_open_and_both_ends_speak(address):
    client = WebSocket(address, "/echo")
    try:
        assert b" 101 " in client.status
        assert client.receive() == "welcome"
        for n in range(50):
            client.send(f"number {n}")
            assert client.receive() == f"echo number {n}"
    finally:
        client.close()
