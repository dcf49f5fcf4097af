"""Reading files from untrusted tar archives: nothing is written outside the requested folder."""

import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath

from wnfused.data.download import writing
from wnfused.data.splits import DataError

LARGEST = 1 << 30  # bytes; CIFAR's largest file has 155 million


def members(archive: Path, folder: str, files: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """(name, content) of each of ``files`` that the archive contains in ``folder``, in the archive's order.

    An archive that contains a link, a device or a path outside its folder is rejected as a whole.
    """
    try:
        with tarfile.open(archive, "r:*") as tar:
            for member in tar:
                _check(archive, member)
                path = PurePosixPath(member.name)
                wanted = member.isreg() and path.parent.name == folder and path.name in files
                if wanted and (content := tar.extractfile(member)):
                    yield path.name, content.read()
            _read_to_the_end(tar)
    except DataError:
        raise
    except Exception as error:  # a damaged archive can fail in any way
        reason = str(error).partition("\n")[0].rstrip(":")
        raise DataError(f"{archive} cannot be read; it may be truncated ({reason})") from error


def _read_to_the_end(tar: tarfile.TarFile) -> None:
    """tarfile stops before the checksum at the end of a packed archive, which nobody compares then."""
    while tar.fileobj is not None and tar.fileobj.read(1 << 20):
        pass


def _check(archive: Path, member: tarfile.TarInfo) -> None:
    path = PurePosixPath(member.name)
    if path.is_absolute() or PureWindowsPath(member.name).drive or "\\" in member.name or ".." in path.parts:
        raise DataError(f"{archive} is unsafe: it contains {member.name!r}, which is outside its folder")
    if not (member.isreg() or member.isdir()):
        raise DataError(f"{archive} is unsafe: {member.name!r} is neither a file nor a folder")
    if member.size > LARGEST:
        raise DataError(f"{archive} is unsafe: {member.name!r} has {member.size} bytes, expected at most {LARGEST}")


def unpack(archive: Path, folder: str, files: Sequence[str]) -> None:
    """Unpack ``files`` from the archive's ``folder`` next to the archive: all of them, or none after an error.

    The caller holds the lock of the archive's folder.
    """
    for leftover in archive.parent.glob(".unpacking-*"):  # from a process that was killed
        shutil.rmtree(leftover, ignore_errors=True)
    with writing(archive.parent):
        place = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=archive.parent))
    try:
        for name, content in members(archive, folder, files):
            with writing(place / name):
                (place / name).write_bytes(content)
        if lacking := [name for name in files if not (place / name).is_file()]:
            raise DataError(f"{archive} does not contain {folder}/{lacking[0]}")
        with writing(archive.parent / folder):
            place.chmod(0o755)  # mkdtemp gives access to the owner only
            shutil.rmtree(archive.parent / folder, ignore_errors=True)
            place.rename(archive.parent / folder)
    finally:
        shutil.rmtree(place, ignore_errors=True)
