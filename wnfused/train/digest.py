"""A digest of a whole checkpoint in its last bytes, so that no changed bit goes unnoticed.

The checksums that torch.save writes cover the entries of its zip archive but not the archive's headers, and torch.load
looks at none of them: a changed bit there can raise almost anything, or hide a tensor. The digest covers every byte.

It is the archive's comment, the last field of a zip file. A file beside the checkpoint could belong to an earlier one
after a crash between two renames; the comment arrives in the same rename, and the checkpoint stays an archive that
plain torch.load reads.
"""

import hashlib
import os
import zipfile
from typing import Any, BinaryIO

import torch

MARK = b"wnfused sha256 "
COMMENT = len(MARK) + 2 * hashlib.sha256().digest_size
NO_COMMENT = b"\0\0"  # the length of the comment as torch writes it, in the last two bytes of its archive
END_SIGNATURE, END_SIZE = b"PK\5\6", 22  # of the record that ends a zip archive, without a comment
TAIL = len(NO_COMMENT) + COMMENT
CHUNK = 1 << 20


class Damaged(Exception):
    """The file is not what was written, or was not written here."""


def save(payload: Any, file: BinaryIO) -> None:
    """torch.save with a digest at the end."""
    writer = _Writer(file)
    torch.save(payload, writer)  # type: ignore[arg-type]  # torch calls write and flush, no more
    if not (writer.end.startswith(END_SIGNATURE) and writer.end.endswith(NO_COMMENT)):
        raise RuntimeError(
            "torch.save: its file does not end as a zip archive without a comment; no place for a digest"
        )
    file.seek(-len(NO_COMMENT), os.SEEK_END)
    file.write(_tail(writer.digest))


def check(file: BinaryIO) -> None:
    """Raise Damaged unless the file is byte for byte what ``save`` wrote; leaves it at its start."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - TAIL))
    tail = file.read()
    if len(tail) < TAIL or not tail[len(NO_COMMENT) :].startswith(MARK):
        if zipfile.is_zipfile(file):
            raise Damaged("it has no digest: it is of another program or version, or its last bytes are damaged")
        raise Damaged("it is truncated or no checkpoint at all")
    digest = hashlib.sha256()
    left = size - TAIL
    file.seek(0)
    while left and (chunk := file.read(min(CHUNK, left))):
        digest.update(chunk)
        left -= len(chunk)
    digest.update(NO_COMMENT)
    if _tail(digest) != tail:
        raise Damaged("it is damaged (its digest does not match)")
    file.seek(0)


def _tail(digest: "hashlib._Hash") -> bytes:
    """The last bytes of a file: the length of the comment, and the comment."""
    return COMMENT.to_bytes(2, "little") + MARK + digest.hexdigest().encode()


class _Writer:
    """Passes on what torch writes, which it writes in order, and hashes it on the way."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.digest, self.end = file, hashlib.sha256(), b""

    def write(self, content: Any) -> int:
        self.digest.update(content)
        self.end = (self.end + bytes(content[-END_SIZE:]))[-END_SIZE:]
        return self.file.write(content)

    def flush(self) -> None:
        self.file.flush()
