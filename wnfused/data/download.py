"""Downloads that resume where they stopped; a file is accepted only if its SHA-256 matches."""

import hashlib
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import BinaryIO

from wnfused.data.progress import Advance, progress
from wnfused.data.sources import Source
from wnfused.data.splits import DataError

CHUNK = 1 << 18
TIMEOUT = 30.0  # seconds without a byte
ATTEMPTS = 4  # per address; each resumes where the last one stopped
PAUSE = 1.0  # seconds before the second attempt, doubled for each later one


class _Refused(Exception):
    """This address does not provide the file; a retry would not help."""


class _CutOff(Exception):
    """The connection was lost; a retry may help."""


def cache_folder() -> Path:
    """The folder for downloads: WNFUSED_DATA, or wnfused/data in the user's cache folder."""
    if chosen := os.environ.get("WNFUSED_DATA"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "wnfused" / "data"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Create ``folder`` and hold its lock; the lock is released when its process ends, however it ends."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        handle = (folder / "lock").open("wb")
    with handle:
        try:
            import fcntl
        except ImportError:  # Windows: two concurrent downloads corrupt each other, and the checksum detects it
            yield
            return
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn errors of the file system, such as a full disk, into a DataError."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise DataError(f"cannot write {path}: {reason}; set WNFUSED_DATA to download to another folder") from error


def fetch(source: Source, folder: Path) -> Path:
    """The file of ``source`` in ``folder``, downloaded if missing; a file gets its final name only once verified."""
    target, part = folder / source.file, folder / f"{source.file}.part"
    if target.is_file() and target.stat().st_size == source.size:
        return target
    failures = []
    with progress(source.file, source.size) as advance:
        for base in source.folders:
            try:
                _fetch_from(base + source.file, source, part, advance)
            except _Refused as error:
                failures.append(f"{base}{source.file}: {error}")
                continue
            with writing(target):
                part.replace(target)
            return target
    kept = f"; the partial download is kept in {part}, and the next attempt resumes it" if part.exists() else ""
    raise DataError(f"cannot download {source.file}: {'; '.join(failures)}{kept}")


def _fetch_from(address: str, source: Source, part: Path, advance: Advance) -> None:
    """Complete ``part`` from one address and verify it."""
    problem = ""
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(PAUSE * 2 ** (attempt - 1))
        resumed = part.exists()
        try:
            _receive(address, source, part, advance)
        except _CutOff as error:
            problem = str(error)
            continue
        if sha256(part) == source.sha256:
            return
        part.unlink()
        problem = f"the SHA-256 of the downloaded file is not {source.sha256}"
        if not resumed:  # retry only a resumed file: its earlier part may have been corrupt
            break
    raise _Refused(problem)


def _receive(address: str, source: Source, part: Path, advance: Advance) -> None:
    """Append the missing bytes to ``part``."""
    have = part.stat().st_size if part.exists() else 0
    if have > source.size:
        part.unlink()
        have = 0
    advance(have)
    if have == source.size:
        return
    with _open(address, have, part) as response:
        start = _start_of(response, have)
        length = response.headers.get("Content-Length")
        if length is not None and length != str(source.size - start):
            raise _Refused(f"offers {length} bytes instead of {source.size - start}")
        with writing(part), part.open("ab" if start else "wb") as file:
            _copy(response, file, source.size, start, advance)


def _open(address: str, start: int, part: Path) -> HTTPResponse:
    request = urllib.request.Request(address, headers={"User-Agent": "wnfused"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        response: HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:  # the server cannot send the rest: request the whole file
            part.unlink()
        if error.code >= 500 or error.code in (408, 416, 429):
            raise _CutOff(f"HTTP {error.code} {error.reason}") from error
        raise _Refused(f"HTTP {error.code} {error.reason}") from error
    except (OSError, HTTPException) as error:  # URLError is an OSError
        raise _CutOff(f"no connection ({getattr(error, 'reason', error)})") from error
    return response


def _start_of(response: HTTPResponse, asked: int) -> int:
    """The position the server sends from: the requested one, or 0 if it cannot resume."""
    if response.status != 206:
        return 0
    if not response.headers.get("Content-Range", "").startswith(f"bytes {asked}-"):
        raise _Refused(f"answers a request for bytes {asked}- with {response.headers.get('Content-Range')!r}")
    return asked


def _copy(response: HTTPResponse, file: BinaryIO, size: int, done: int, advance: Advance) -> None:
    while True:
        try:
            chunk = response.read(CHUNK)
        except (OSError, HTTPException) as error:
            raise _CutOff(f"the connection was lost after {done} of {size} bytes") from error
        if not chunk:
            break
        done += len(chunk)
        if done > size:
            raise _Refused(f"sends more than {size} bytes")
        file.write(chunk)
        advance(done)
    if done < size:
        raise _CutOff(f"the connection was lost after {done} of {size} bytes")


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
