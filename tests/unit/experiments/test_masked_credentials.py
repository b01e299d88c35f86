"""No message or record contains credentials. A server that is down is named within seconds."""

import json
import socket
import sys
import threading
import time
from contextlib import closing, contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablations.cli.terminal import Guarded
from experiments import masking
from experiments.errors import UserError
from experiments.events.lines import decode, encode
from experiments.jobs.queue.job import Ending, Outcome, State
from experiments.masking import MASK, masked, masked_message
from experiments.store import ledger, provenance
from experiments.store.layout import Store
from experiments.tracking import reachable

SECRET = "hunter2-GEHEIM"
ADDRESSES = [
    f"http://user:{SECRET}@host:5000/path#exp",
    f"postgresql+psycopg2://user:{SECRET}@host/db",
    f"https://{SECRET}@github.com/owner/name",
    f"http://user:a@b/{SECRET}@host",
    f"https://host/x?token={SECRET}&page=2",
    f"https://host/x?page=2&access_token={SECRET}",
    f"Authorization: Bearer {SECRET}",
    f"{{'Authorization': 'Basic {SECRET}'}}",
    f"dbname=x password={SECRET} host=h",
]
HARMLESS = [
    "http://host:5000/path", "https://user.example/a@b", "git@github.com:owner/name", "ssh://git@host/x", "a@b: c://d",
    "tokens_per_batch=25000", "rate=0.5 (token = word)", "basic settings", "10 % @ 3e-4", "mlflow:runs.db#x",
]  # fmt: skip


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_password_is_masked_and_the_rest_stays(address):
    shown = masked(f"before {address} after")
    assert SECRET not in shown and MASK in shown and shown.startswith("before ") and shown.endswith(" after")
    assert masked(shown) == shown
    assert ("host" in shown) == ("host" in address)


@pytest.mark.parametrize("text", HARMLESS)
def test_a_text_without_a_password_stays(text):
    assert masked(text) == text


@given(st.text(max_size=60))
def test_masking_twice_changes_nothing(text):
    assert masked(masked(text)) == masked(text)


def test_secrets_of_the_environment_are_in_no_message(monkeypatch):
    for name, value in {"WANDB_API_KEY": SECRET, "TOKEN": "0", "MY_PASSWORD": "password", "TOKEN_FILE": "/tmp/a1B2c3d4",
                        "TOKENIZERS": "Abcdefgh1"}.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    masking._secrets.cache_clear()
    try:
        text = f"key {SECRET}; 0 password /tmp/a1B2c3d4 Abcdefgh1"
        assert masked_message(text) == text.replace(SECRET, MASK)
        assert masked(text) == text
    finally:
        masking._secrets.cache_clear()


@pytest.mark.parametrize("address", ADDRESSES)
def test_no_message_and_no_record_has_it(address, tmp_path, monkeypatch, capsys):
    Guarded(sys.stdout).write(address)
    Guarded(sys.stderr, masked_message).write(address)
    assert SECRET not in "".join(capsys.readouterr())
    line = encode({"kind": "failed", "t": 1.0, "cls": "bug", "message": address, "traceback": f"x {address}"})
    assert SECRET.encode() not in line and decode(line)["kind"] == "failed"
    ending = Ending(State.FAILED, Outcome.BUG, f"it says {address}", address)
    assert SECRET not in repr(ending)
    ledger.append(Store.open(tmp_path / "s"), "request", because=address)
    assert SECRET.encode() not in (tmp_path / "s" / ledger.FILE).read_bytes() and not ledger.damaged(
        Store(tmp_path / "s")
    )
    monkeypatch.setattr(sys, "argv", ["ablations", "import", "t.toml", "--from", f"mlflow:{address}"])
    monkeypatch.setattr("platform.platform", lambda: "linux")  # it starts a process
    assert SECRET not in json.dumps(provenance.host())


@contextmanager
def server(answer):
    """Start a server on a free port that sends `answer` to each connection, or nothing."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        open_ = []

        def serve():
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                open_.append(connection)
                if answer:
                    connection.recv(1000)
                    connection.sendall(answer)
                    connection.close()

        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1]


def test_a_server_that_is_down_or_silent_is_named_at_once(monkeypatch):
    monkeypatch.delenv("http_proxy", raising=False)
    monkeypatch.setattr(reachable, "ANSWER_S", 0.5)
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
    began = time.monotonic()
    for address in (f"http://u:{SECRET}@127.0.0.1:{port}", f"postgresql://u:{SECRET}@127.0.0.1:{port}/db"):
        with pytest.raises(UserError, match=f"no server answers at 127.0.0.1:{port}"):
            reachable.refuse_unreachable(address)
    with server(b"") as port, pytest.raises(UserError, match="sent no answer"):
        reachable.refuse_unreachable(f"http://127.0.0.1:{port}")
    assert time.monotonic() - began < 5
    for answer in (b"HTTP/1.1 401 Unauthorized\r\n\r\n", b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n",
                   b"HTTP/1.1 200 OK\r\n\r\nhello", b"no HTTP"):  # fmt: skip
        with server(answer) as port:
            reachable.refuse_unreachable(f"http://127.0.0.1:{port}/mlflow")
    for address in ("", "runs.db", "sqlite:///x.db", "file:///x", "databricks", "databricks://profile"):
        reachable.refuse_unreachable(address)
