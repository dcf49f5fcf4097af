"""Downloads from a local server that drops connections, returns errors or wrong data, or cannot resume."""

import dataclasses
import gzip
import hashlib
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from tests.support import data_files as made
from wnfused.data import DataError, load
from wnfused.data.download import cache_folder, fetch, locked
from wnfused.data.sources import PAGES, SOURCES, Source

DATA = np.random.default_rng(0).integers(0, 256, 1_000_000, np.uint8).tobytes()


@dataclass
class Server:
    """The files of the server, its faults, and the requests it received."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    cuts: list[int] = field(default_factory=list)  # bytes sent before the connection breaks, request by request
    statuses: list[int] = field(default_factory=list)  # errors, request by request
    ranges: bool = True
    lengths: bool = True
    pause: float = 0.0  # seconds before it answers
    requested: list[tuple[str, str | None]] = field(default_factory=list)

    def source(self, file: str = "file.gz", **changes: object) -> Source:
        data = self.files[file]
        made = Source(file, (self.address,), len(data), hashlib.sha256(data).hexdigest())
        return dataclasses.replace(made, **changes)


def handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            server.requested.append((self.path, wanted))
            time.sleep(server.pause)
            status = server.statuses.pop(0) if server.statuses else 200
            data = server.files.get(self.path.removeprefix("/"))
            if status != 200 or data is None:
                self.send_error(status if status != 200 else 404)
                return
            start = 0
            if wanted and server.ranges:
                start = int(wanted.removeprefix("bytes=").removesuffix("-"))
                if start >= len(data):
                    self.send_error(416)
                    return
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            else:
                self.send_response(200)
            if server.lengths:
                self.send_header("Content-Length", str(len(data) - start))
            self.end_headers()
            cut = server.cuts.pop(0) if server.cuts else len(data)
            self.wfile.write(data[start : start + cut])

        def log_message(self, *args: object) -> None:
            pass

    return Handler


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr("wnfused.data.download.PAUSE", 0.0)
    monkeypatch.setattr("wnfused.data.download.TIMEOUT", 5.0)
    state = Server(files={"file.gz": DATA})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler(state)) as running:
        state.address = f"http://127.0.0.1:{running.server_address[1]}/"
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield state
        running.shutdown()
        thread.join()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def ranges(server: Server) -> list[str | None]:
    return [wanted for _, wanted in server.requested]


def test_a_file_is_downloaded_once(server, tmp_path, capsys):
    path = fetch(server.source(), tmp_path)
    assert path == tmp_path / "file.gz" and path.read_bytes() == DATA and names(tmp_path) == ["file.gz"]
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "file.gz: 0% of 1 MB" and lines[-1] == "file.gz: 100% of 1 MB" and len(lines) <= 11
    assert fetch(server.source(), tmp_path) == path
    assert ranges(server) == [None]


def test_a_bar_on_a_terminal(server, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    fetch(server.source(), tmp_path)
    shown = capsys.readouterr().err
    assert "file.gz" in shown and "1.0/1.0 MB" in shown and "%" not in shown
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    (tmp_path / "file.gz").unlink()
    fetch(server.source(), tmp_path)
    assert "file.gz: 100% of 1 MB" in capsys.readouterr().err


@pytest.mark.parametrize("lengths", [True, False])
def test_a_dropped_connection_is_resumed(lengths, server, tmp_path):
    server.cuts, server.lengths = [300_000, 0, 250_000], lengths
    assert fetch(server.source(), tmp_path).read_bytes() == DATA
    assert ranges(server) == [None, "bytes=300000-", "bytes=300000-", "bytes=550000-"]


def test_the_next_run_resumes_the_download(server, tmp_path):
    server.cuts = [100_000] * 4
    with pytest.raises(
        DataError, match=r"connection was lost after 400000 of 1000000 bytes; the partial download is kept in .*part"
    ):
        fetch(server.source(), tmp_path)
    assert names(tmp_path) == ["file.gz.part"]
    assert fetch(server.source(), tmp_path).read_bytes() == DATA
    assert ranges(server)[4:] == ["bytes=400000-"] and names(tmp_path) == ["file.gz"]


def test_a_complete_partial_file_needs_no_request(server, tmp_path):
    (tmp_path / "file.gz.part").write_bytes(DATA)
    assert fetch(server.source(), tmp_path).read_bytes() == DATA
    assert server.requested == []


def test_a_server_without_ranges_sends_the_whole_file(server, tmp_path):
    server.ranges, server.cuts = False, [300_000]
    assert fetch(server.source(), tmp_path).read_bytes() == DATA
    assert ranges(server) == [None, "bytes=300000-"]


def test_a_rejected_range_falls_back_to_the_whole_file(server, tmp_path):
    (tmp_path / "file.gz.part").write_bytes(DATA[:1000])
    server.statuses = [416]
    assert fetch(server.source(), tmp_path).read_bytes() == DATA
    assert ranges(server) == ["bytes=1000-", None]


@pytest.mark.parametrize("part", [b"x" * 10, b"x" * len(DATA), b"x" * (len(DATA) + 1)], ids=len)
def test_a_corrupt_partial_file_is_replaced(part, server, tmp_path):
    (tmp_path / "file.gz.part").write_bytes(part)
    assert fetch(server.source(), tmp_path).read_bytes() == DATA
    assert ranges(server)[-1] is None and names(tmp_path) == ["file.gz"]


def test_a_file_of_the_wrong_size_is_downloaded_again(server, tmp_path):
    (tmp_path / "file.gz").write_bytes(b"short")
    assert fetch(server.source(), tmp_path).read_bytes() == DATA


def test_wrong_content_is_discarded(server, tmp_path):
    with pytest.raises(DataError, match=rf"file.gz: the SHA-256 of the downloaded file is not {'0' * 64}$"):
        fetch(server.source(sha256="0" * 64), tmp_path)
    assert names(tmp_path) == [] and ranges(server) == [None]


@pytest.mark.parametrize("lengths", [True, False])
def test_a_different_size_is_rejected(lengths, server, tmp_path):
    server.lengths = lengths
    message = "offers 1000000 bytes instead of 999000" if lengths else "sends more than 999000 bytes"
    with pytest.raises(DataError, match=message):
        fetch(server.source(size=999_000), tmp_path)
    assert not (tmp_path / "file.gz").exists() and len(server.requested) == 1


def test_only_temporary_errors_are_retried(server, tmp_path):
    server.statuses = [404]
    with pytest.raises(DataError, match=r"cannot download file.gz: http://127.0.0.1:\d+/file.gz: HTTP 404 Not Found$"):
        fetch(server.source(), tmp_path)
    assert len(server.requested) == 1
    server.statuses = [503, 500, 429]
    assert fetch(server.source(), tmp_path).read_bytes() == DATA
    (tmp_path / "file.gz").unlink()
    server.statuses = [503] * 4
    with pytest.raises(DataError, match="HTTP 503 Service Unavailable$"):
        fetch(server.source(), tmp_path)


def test_mirrors_are_tried_in_turn(server, tmp_path):
    dead = "http://127.0.0.1:9/"  # nothing listens there
    source = server.source(folders=(dead, f"{server.address}gone/", server.address))
    assert fetch(source, tmp_path).read_bytes() == DATA
    with pytest.raises(DataError, match=r"127.0.0.1:9/file.gz: no connection \(.*\); http.*/gone/file.gz: HTTP 404"):
        fetch(dataclasses.replace(source, folders=source.folders[:2]), tmp_path / "other")
    assert [path for path, _ in server.requested] == ["/gone/file.gz", "/file.gz", "/gone/file.gz"]


def test_directories_that_cannot_be_written(server, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with (
        pytest.raises(DataError, match="cannot write .*; set WNFUSED_DATA to download to another folder"),
        locked(tmp_path / "file"),
    ):
        pass
    if Path("/dev/full").exists():
        (tmp_path / "file.gz.part").symlink_to("/dev/full")
        with pytest.raises(DataError, match=r"cannot write .*file.gz.part: No space left on device"):
            fetch(server.source(), tmp_path)


def test_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("WNFUSED_DATA", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == tmp_path / ".cache" / "wnfused" / "data"
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert cache_folder() == Path("/elsewhere/wnfused/data")
    monkeypatch.setenv("WNFUSED_DATA", "~/data")
    assert cache_folder() == tmp_path / "data"


@pytest.fixture
def official(server, tmp_path, monkeypatch) -> Server:
    """The server replaces the official addresses, and the cache directory is empty."""
    monkeypatch.setenv("WNFUSED_DATA", str(tmp_path / "cache"))
    server.files = {f"{name}.gz": gzip.compress(made.idx(array)) for name, array in made.mnist().items()}
    sources = {"mnist": tuple(server.source(name) for name in server.files)}
    for name in ("cifar10", "cifar100"):
        folder, archive, *_ = made.CIFAR[name, "binary"]
        files = made.cifar_files(name, "binary", made.cifar(name, "binary"))
        server.files[archive] = made.tar({f"{folder}/{file}": data for file, data in files.items()})
        sources[name] = (server.source(archive),)
    for name, value in sources.items():
        monkeypatch.setitem(SOURCES, name, value)
    return server


@pytest.mark.parametrize("name", ["mnist", "cifar10", "cifar100"])
def test_data_sets_are_downloaded_once(name, official, tmp_path):
    first = load(name)
    count = len(official.requested)
    assert count == len(SOURCES[name])
    again = load(name, download=False)
    assert len(official.requested) == count
    assert np.array_equal(first.train.images, again.train.images) and np.array_equal(
        first.test.labels, again.test.labels
    )
    expected = {"mnist": 7, "cifar10": 15, "cifar100": 3}[name]
    assert len(first.train) == expected
    if name != "mnist":  # unpacked, and the archive is gone
        assert names(tmp_path / "cache" / name) == sorted([made.CIFAR[name, "binary"][0], "lock"])
    assert len(load(name, data_dir=tmp_path / "cache").train) == expected


def test_a_download_that_was_killed_before_unpacking(official, tmp_path):
    folder = tmp_path / "cache" / "cifar100"
    made.write_folder(folder, {"cifar-100-binary.tar.gz": official.files["cifar-100-binary.tar.gz"]})
    made.write_folder(folder / ".unpacking-left", {"train.bin": b"half"})
    assert len(load("cifar100").train) == 3 and official.requested == []
    assert names(folder) == ["cifar-100-binary", "lock"]


def test_errors_say_where_to_get_it(official, tmp_path):
    for name in ("mnist", "cifar10"):
        with pytest.raises(DataError) as caught:
            load(name, download=False)
        assert f"{name}: it is not in the cache folder {tmp_path / 'cache' / name}" in str(caught.value)
        assert PAGES[name] in str(caught.value) and "pass its folder as data_dir" in str(caught.value)
    official.files.clear()
    with pytest.raises(DataError) as caught:
        load("cifar10")
    message = str(caught.value)
    assert (
        message.startswith("cifar10: cannot download cifar-10-binary.tar.gz: http://127.0.0.1") and "\n" not in message
    )
    assert "HTTP 404" in message and PAGES["cifar10"] in message and "pass its folder as data_dir" in message


def test_a_damaged_cache(official, tmp_path):
    load("cifar100")
    (tmp_path / "cache" / "cifar100" / "cifar-100-binary" / "train.bin").write_bytes(b"short")
    with pytest.raises(
        DataError, match=rf"train.bin is corrupt.*Delete {tmp_path / 'cache' / 'cifar100'} to download it again"
    ):
        load("cifar100")


def test_concurrent_loads_download_once(official):
    official.pause = 0.1  # long enough for the others to arrive
    with ThreadPoolExecutor(3) as pool:  # the lock belongs to the open file, so threads behave like processes
        sizes = list(pool.map(lambda _: len(load("cifar100").train), range(3)))
    assert sizes == [3, 3, 3]
    assert [path for path, _ in official.requested] == ["/cifar-100-binary.tar.gz"]


def test_official_facts_are_well_formed():
    for sources in SOURCES.values():
        for source in sources:
            assert len(source.sha256) == 64 and int(source.sha256, 16) and source.size > 1000
            assert all(folder.startswith("http") and folder.endswith("/") for folder in source.folders)
