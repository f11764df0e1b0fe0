import hashlib
import http.server
import os
import threading
from dataclasses import replace

import pytest

from widelimit.data import CIFAR10, GLOVE, IMDB, DataError, RemoteFile, data_root, fetch
from widelimit.data.places import locate

CONTENT = os.urandom(3_000_000)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/missing.bin":
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT[: len(CONTENT) // 2] if self.path == "/short.bin" else CONTENT)

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()
        thread.join()


@pytest.fixture
def source(server, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return RemoteFile(f"{server}/good.bin", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())


def test_fetch_checks_and_keeps(tmp_path, source):
    seen = []
    path = fetch(source, tmp_path / "new", progress=lambda done, total: seen.append((done, total)))
    assert path == tmp_path / "new" / "good.bin"
    assert path.read_bytes() == CONTENT
    assert os.listdir(path.parent) == ["good.bin"]
    assert seen == [(1, 3), (2, 3), (3, 3)]  # megabytes


def test_a_file_already_there_is_not_fetched_again(tmp_path, source):
    fetch(source, tmp_path)
    offline = replace(source, url="http://127.0.0.1:1/good.bin")
    assert fetch(offline, tmp_path).read_bytes() == CONTENT


def test_a_cut_off_file_already_there_is_fetched_again(tmp_path, source):
    (tmp_path / "good.bin").write_bytes(CONTENT[:1000])
    assert fetch(source, tmp_path).read_bytes() == CONTENT
    (tmp_path / "good.bin").write_bytes(CONTENT[:1000])
    with pytest.raises(DataError, match="could not be fetched"):
        fetch(replace(source, url="http://127.0.0.1:1/good.bin"), tmp_path)


def test_wrong_checksum_keeps_nothing(tmp_path, source):
    with pytest.raises(DataError, match=r"could not be fetched.*nothing was kept"):
        fetch(replace(source, sha256="0" * 64), tmp_path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("name", "message"), [("short", "1500000"), ("missing", "404")])
def test_broken_connections_keep_nothing(tmp_path, source, name, message):
    with pytest.raises(DataError, match=rf"({message}).*WIDELIMIT_DATA"):
        fetch(replace(source, url=source.url.replace("good", name)), tmp_path)
    assert os.listdir(tmp_path) == []


def test_no_network(tmp_path, source):
    with pytest.raises(DataError, match=r"could not be fetched.*get good.bin in another way"):
        fetch(replace(source, url="http://127.0.0.1:1/good.bin"), tmp_path)
    assert os.listdir(tmp_path) == []


def test_interrupt_keeps_nothing(tmp_path, source):
    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(source, tmp_path, progress=interrupt)
    assert os.listdir(tmp_path) == []


def test_locate_downloads_when_asked(tmp_path, source):
    with pytest.raises(DataError, match="download=True"):
        locate("It", ["it.bin"], tmp_path, source=source)
    assert locate("It", ["it.bin"], tmp_path, source=source, download=True).name == "good.bin"


def test_data_root(tmp_path, monkeypatch):
    assert data_root("here").name == "here"
    assert data_root() == tmp_path / "cache" / "widelimit"
    monkeypatch.setenv("WIDELIMIT_DATA", str(tmp_path))
    assert data_root() == tmp_path
    assert data_root("here").name == "here"


def test_official_sources_are_well_formed():
    for source in (CIFAR10, IMDB, GLOVE):
        assert source.url.startswith("https://")
        assert len(bytes.fromhex(source.sha256)) == 32
    assert CIFAR10.name == "cifar-10-binary.tar.gz"
