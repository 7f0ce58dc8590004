"""Posts.xml out of a .7z archive, without trust in what the archive says of itself.

    .7z ─ open_archive ─ not locked, one Posts.xml, not too large ─> member
    member ─ open_posts ─ as many bytes as it declares ─> a file of ours, gone when it is closed

Whatever py7zr raises at damaged bytes becomes an error that names the archive.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from tokmill.errors import CorruptFile, InputError, MissingExtra, TokmillError
from tokmill.storage.commit import storage_error, temp_beside
from tokmill.storage.location import open_binary


@contextlib.contextmanager
def open_posts(path: Path, directory: Path, max_expansion: int) -> Iterator[Path]:
    """The XML of a file: itself, or what its archive holds, unpacked in `directory` as long as this is open.

    The name is ours: no name of an archive's member is ever used as a path.
    """
    if path.suffix != ".7z":
        yield path
        return
    unpacked = temp_beside(directory / f"{path.stat().st_ino}.xml")
    try:
        with open_archive(path, max_expansion) as (archive, member):
            try:
                file = unpacked.open("wb")
            except OSError as error:
                raise storage_error(error, unpacked) from error
            with file:
                sink = _sink(file, member.uncompressed, path)
                archive.extract(targets=[member.filename], factory=sink)
                if sink.bytes != member.uncompressed:
                    raise _damaged(path, f"{sink.bytes:,} of {member.uncompressed:,} bytes came out")
        yield unpacked
    finally:
        unpacked.unlink(missing_ok=True)


@contextlib.contextmanager
def open_archive(path: Path, max_expansion: int) -> Iterator[tuple[Any, Any]]:
    """The archive and its member Posts.xml, which is neither too large nor locked."""
    try:
        import py7zr
    except ImportError:
        raise MissingExtra(
            "reading .7z needs py7zr",
            where=str(path),
            next="pip install 'tokmill[stackexchange]', or unpack the archive",
        ) from None
    try:
        with (
            open_binary(path) as raw,
            io.BufferedReader(raw) as buffered,
            py7zr.SevenZipFile(buffered, "r") as archive,
        ):
            if archive.needs_password():
                raise _damaged(path, "it is encrypted")
            members = archive.list()
            posts = [m for m in members if PurePosixPath(m.filename).name == "Posts.xml" and m.is_file]
            if len(posts) != 1 or posts[0].is_symlink:
                some = ", ".join(repr(member.filename[:60]) for member in members[:5])
                raise InputError(
                    f"holds {len(posts)} files called Posts.xml; the archive has {some or 'no member'}",
                    where=str(path),
                    next="point `files` at the archives with the posts of a site",
                )
            size, packed = sum(member.uncompressed for member in members), path.stat().st_size
            if size > max_expansion * packed:
                raise InputError(
                    f"would grow from {packed:,} to {size:,} bytes, more than max_expansion {max_expansion}",
                    where=str(path),
                    next="raise `stackexchange: {max_expansion: …}` if you trust the archive",
                )
            yield archive, posts[0]
    except TokmillError:
        raise
    except Exception as error:  # py7zr: LZMAError, struct.error, AttributeError, … for damaged bytes
        if isinstance(error, OSError) and error.errno:
            raise storage_error(error, path) from error
        raise _damaged(path, str(error) or type(error).__name__) from error


def _sink(file: io.BufferedWriter, declared: int, path: Path) -> Any:
    """Where py7zr writes the one member that is asked for, whatever its name."""
    from py7zr.io import Py7zIO, WriterFactory

    class Sink(Py7zIO):
        def write(self, data: bytes | bytearray) -> int:
            factory.bytes += len(data)
            if factory.bytes > declared:
                raise _damaged(path, f"more than the {declared:,} bytes that it declares come out")
            try:
                return file.write(data)
            except OSError as error:
                raise storage_error(error, Path(file.name)) from error

        def read(self, size: int | None = None) -> bytes:
            return b""

        def seek(self, offset: int, whence: int = 0) -> int:
            return 0

        def flush(self) -> None: ...

        def size(self) -> int:
            return factory.bytes

    class Factory(WriterFactory):
        bytes = 0

        def create(self, filename: str) -> Py7zIO:
            return Sink()

    factory = Factory()
    return factory


def _damaged(path: Path, why: str) -> CorruptFile:
    return CorruptFile(
        f"cannot be unpacked as 7z ({why})", where=str(path), next="copy or download the archive again"
    )
