"""Archives that try to leave their folder are refused, and leave nothing behind."""

import random
import tarfile
from pathlib import Path

import pytest

from tests.support import data_files as made
from wnfused.data import DataError, load
from wnfused.data.archives import members, unpack

FOLDER, ARCHIVE = "cifar-100-binary", "cifar-100-binary.tar.gz"
FILES = made.cifar_files("cifar100", "binary", made.cifar("cifar100", "binary"))
MEMBERS = {f"{FOLDER}/{name}": data for name, data in FILES.items()}


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def special(name: str, kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    return info


HOSTILE = {
    "parent": tarfile.TarInfo("../outside"),
    "parent, later": tarfile.TarInfo(f"{FOLDER}/../../outside"),
    "parent of a wanted name": tarfile.TarInfo(f"../{FOLDER}/train.bin"),
    "absolute": tarfile.TarInfo("/tmp/outside"),
    "drive": tarfile.TarInfo("C:/outside"),
    "backslashes": tarfile.TarInfo("..\\outside"),
    "symlink": link(f"{FOLDER}/train.bin", "/etc/passwd"),
    "symlink to a folder": link(FOLDER, ".."),
    "hard link": link(f"{FOLDER}/test.bin", "../../secret", tarfile.LNKTYPE),
    "device": special(f"{FOLDER}/train.bin", tarfile.CHRTYPE),
    "pipe": special(f"{FOLDER}/train.bin", tarfile.FIFOTYPE),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_archives(kind, tmp_path):
    (tmp_path / "secret").write_text("secret")
    archive = tmp_path / "data" / ARCHIVE
    archive.parent.mkdir()
    archive.write_bytes(made.tar_with(HOSTILE[kind], MEMBERS, b"x" if HOSTILE[kind].isreg() else b""))
    before = tree(tmp_path)
    with pytest.raises(DataError, match="is unsafe"):
        unpack(archive, FOLDER, tuple(FILES))
    with pytest.raises(DataError, match="is unsafe"):
        load("cifar100", data_dir=archive.parent)
    assert tree(tmp_path) == before


def test_a_file_too_large_to_be_true(tmp_path, monkeypatch):
    monkeypatch.setattr("wnfused.data.archives.LARGEST", 1000)
    (tmp_path / ARCHIVE).write_bytes(made.tar(MEMBERS))
    with pytest.raises(DataError, match=r"train.bin' has \d+ bytes"):
        unpack(tmp_path / ARCHIVE, FOLDER, tuple(FILES))
    assert tree(tmp_path) == [ARCHIVE]


def test_only_what_was_asked_for_is_unpacked(tmp_path):
    (tmp_path / ARCHIVE).write_bytes(made.tar({f"{FOLDER}/readme.html": b"<html>", **MEMBERS, "stray": b"x"}))
    unpack(tmp_path / ARCHIVE, FOLDER, tuple(FILES))
    assert tree(tmp_path) == sorted([ARCHIVE, FOLDER, *MEMBERS])
    assert all((tmp_path / name).read_bytes() == data for name, data in MEMBERS.items())


def test_unpacking_replaces_a_broken_folder_and_keeps_it_if_it_cannot(tmp_path):
    made.write_folder(tmp_path / FOLDER, {"train.bin": b"half"})
    whole = made.tar(MEMBERS)
    for broken, message in (
        (whole[: len(whole) // 2], "cannot be read; it may be truncated"),
        (made.tar({f"{FOLDER}/train.bin": b"x"}), f"does not contain {FOLDER}/test.bin"),
    ):
        (tmp_path / ARCHIVE).write_bytes(broken)
        with pytest.raises(DataError, match=message):
            unpack(tmp_path / ARCHIVE, FOLDER, tuple(FILES))
        assert tree(tmp_path) == [FOLDER, ARCHIVE, f"{FOLDER}/train.bin"]
        assert (tmp_path / FOLDER / "train.bin").read_bytes() == b"half"
    (tmp_path / ARCHIVE).write_bytes(whole)
    unpack(tmp_path / ARCHIVE, FOLDER, tuple(FILES))
    assert all((tmp_path / name).read_bytes() == data for name, data in MEMBERS.items())


@pytest.mark.parametrize("mode", ["w:gz", "w:bz2", "w:xz"])
def test_a_flipped_bit_in_a_packed_archive_never_changes_a_file(mode, tmp_path):
    chance, archive = random.Random(3), tmp_path / "a.tar"
    wanted = {f"data_{i}": chance.randbytes(700) for i in range(3)}
    whole = made.tar({f"folder/{name}": content for name, content in wanted.items()}, mode)
    archive.write_bytes(whole)
    assert dict(members(archive, "folder", list(wanted))) == wanted
    refused = 0
    for place in (chance.randrange(8 * len(whole)) for _ in range(1000)):
        archive.write_bytes(whole[: place // 8] + bytes([whole[place // 8] ^ 1 << place % 8]) + whole[place // 8 + 1 :])
        try:
            found = dict(members(archive, "folder", list(wanted)))
        except DataError:
            refused += 1
        else:
            assert found == wanted  # a bit that means nothing, such as the time of packing
    assert refused > 900
