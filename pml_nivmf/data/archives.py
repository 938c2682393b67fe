"""Unpacking of downloads, which may hold anything: nothing lands outside the folder, and no more than the disk holds.

PML and torchvision unpack with a plain `extractall`; within `guarded_extraction` it is this one.
"""

import contextlib
import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from typing import Any

MOST_ENTRIES = 5_000_000
MOST_BYTES = 10**12


@contextlib.contextmanager
def guarded_extraction() -> Iterator[None]:
    """Within the block tarfile and zipfile refuse members that lead elsewhere, device files and bombs.

    tarfile's "data" filter, the default from Python 3.14 on, is what refuses; zipfile takes `..` and leading slashes
    out of names itself and makes no links.
    """
    if not hasattr(tarfile, "data_filter"):
        raise RuntimeError(
            "this Python unpacks archives unguarded: use 3.10.12, 3.11.4 or newer, or unpack it yourself"
        )
    tar_filter, zip_extractall = getattr(tarfile.TarFile, "extraction_filter", None), zipfile.ZipFile.extractall
    tarfile.TarFile.extraction_filter = staticmethod(_TarFilter())
    zipfile.ZipFile.extractall = _extract_zip(zip_extractall)  # type: ignore[method-assign]
    try:
        yield
    finally:
        tarfile.TarFile.extraction_filter = tar_filter
        zipfile.ZipFile.extractall = zip_extractall  # type: ignore[method-assign]


class _TarFilter:
    """Counts what was unpacked so far: a tar file has no list of contents to look at first."""

    def __init__(self) -> None:
        self._entries = self._bytes = 0

    def __call__(self, member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
        self._entries += 1
        self._bytes += member.size
        _check(self._entries, self._bytes, member.size, path)
        return tarfile.data_filter(member, path)


def _extract_zip(extractall: Any) -> Any:
    def guarded(archive: zipfile.ZipFile, path: Any = None, *arguments: Any, **options: Any) -> None:
        total = sum(entry.file_size for entry in archive.infolist())
        _check(len(archive.infolist()), total, total, path or ".")
        extractall(archive, path, *arguments, **options)

    return guarded


def _check(entries: int, total: int, still_to_write: int, path: Any) -> None:
    """An OSError, as for a disk that is full later."""
    if entries > MOST_ENTRIES or total > MOST_BYTES:
        raise OSError(f"the archive holds more than {MOST_ENTRIES:,} files or {MOST_BYTES:,} bytes: it is not unpacked")
    free = shutil.disk_usage(path).free
    if still_to_write > free:
        raise OSError(f"the archive needs {still_to_write:,} bytes more, but the disk has {free:,}")
