"""Servers as people write them, in the sandbox: reached by HTTP and by a WebSocket."""

import contextlib
import json
import urllib.request

import pytest
import websocket

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


JUPYTER = ["jupyter", "server", "--port=8888", "--no-browser", "--IdentityProvider.token=key"]
PLOT = """
import matplotlib.pyplot as plt
plt.plot([1, 4, 9])
plt.show()
6 * 7
"""


@contextlib.contextmanager
def serve(packages, command, port, **limits):
    environment = Environment("servers", packages=packages)
    with Sandbox(environment=environment, limits=limits) as sandbox:
        sandbox.files.write("app.py", FLASK)
        sandbox.commands.start(command)
        with sandbox.ports.forward(port, timeout=PATIENCE) as address:
            yield address


@pytest.fixture
def flask(backend):
    with serve(["flask", "flask-sock"], ["python", "app.py"], 5000) as address:
        yield address


@pytest.fixture
def jupyter(backend):
    packages = ["jupyter-server", "ipykernel", "matplotlib"]
    with serve(packages, JUPYTER, 8888, memory="2g", processes=200) as address:
        yield address


def post(address, path, data):
    headers = {"Content-Type": "application/json", "Authorization": "token key"}
    asked = urllib.request.Request(
        f"http://{address}{path}", json.dumps(data).encode(), headers=headers
    )
    with urllib.request.urlopen(asked, timeout=PATIENCE) as reply:
        return json.load(reply)


def connect(address, path):
    return websocket.create_connection(f"ws://{address}{path}", timeout=PATIENCE)


def test_flask_answers_json(flask):
    assert post(flask, "/double", {"value": 21}) == {"result": 42}


def test_a_websocket_stays_open_and_both_ends_speak(flask):
    with contextlib.closing(connect(flask, "/echo")) as client:
        assert client.recv() == "welcome"
        for n in range(50):
            client.send(f"number {n}")
            assert client.recv() == f"echo number {n}"


def test_a_jupyter_kernel_runs_a_cell_with_a_plot(jupyter):
    """Its parts talk by libzmq, over the loopback of the sandbox."""
    kernel = post(jupyter, "/api/kernels", {"name": "python3"})["id"]
    header = {"msg_id": "1", "msg_type": "execute_request", "version": "5.3"}
    header |= {"username": "", "session": "s", "date": "2026-01-01T00:00:00Z"}
    content = {"code": "%matplotlib inline" + PLOT, "silent": False, "store_history": True}
    content |= {"user_expressions": {}, "allow_stdin": False, "stop_on_error": True}
    request = {"header": header, "parent_header": {}, "metadata": {}, "content": content}
    shown = []
    path = f"/api/kernels/{kernel}/channels?token=key"
    with contextlib.closing(connect(jupyter, path)) as client:
        client.send(json.dumps({**request, "channel": "shell"}))
        while True:
            said = json.loads(client.recv())
            if said["msg_type"] == "execute_reply":
                break
            shown.append(said["content"].get("data", {}))
    assert said["content"]["status"] == "ok"
    assert any(each.get("image/png", "").startswith("iVBOR") for each in shown)
    assert any(each.get("text/plain") == "42" for each in shown)
