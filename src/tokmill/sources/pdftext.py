"""The text layer of a PDF, by pdfium, in a process that may die of it.

    worker ── {"bytes": n, "seconds": s, …} file ──> attendant ── fork ──> child: limits, pdfium, texts
           <── {"bytes": n, "status": 0} answer ──      one per worker        one per file

pdfium is C++ and meets bytes of strangers: it may crash, grow or never end, and must not take the worker with
it. The attendant is a small Python that has pdfium loaded and forks for every file. The child bounds itself
by the kernel (CPU seconds, address space, no files written), so what ends it is told by its status. Every
file is read by a process that has read nothing before: what came earlier, and so the number of workers,
changes nothing. docs/decisions/0015 has what a fork costs, and a new Python.

pdfium is told of no fonts but its own: those of a machine would decide where a space is seen.

This module is what the attendant runs, so it imports nothing but the standard library.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

MAX_PAGES = 100_000
# Address space of a child: 0.025 GiB with pdfium loaded, 0.028 at most for a manual of 36 pages.
_MEMORY_BYTES, _MEMORY_PER_BYTE = 1 << 30, 4
# CPU seconds end a file, and this many times as many seconds of the clock a child that waits for nothing.
_PATIENCE = 20
_MAX_FACT_BYTES = 4096
_FACTS = ("Title", "Producer", "CreationDate")
_CHILD = "import sys; sys.path[:] = {path!r}; from tokmill.sources.pdftext import attend; attend()"


class Layer(NamedTuple):
    """What a PDF says: the text of each page (None where it cannot be loaded), and what it says of itself."""

    pages: list[str | None]
    facts: dict[str, str]


class Unread(Exception):
    """Why there is none: reason, detail."""


class NotInstalled(Exception):
    """The package that is missing."""


class Stuck(Exception):
    """No verdict about a file: what happened."""


# --- in a worker ---


def read_layer(data: bytes, *, max_seconds: int, max_text_bytes: int) -> Layer:
    asked = {"bytes": len(data), "seconds": max_seconds, "max_text_bytes": max_text_bytes}
    with _LOCK:
        for is_last in (False, True):  # an attendant that was killed is not the fault of the file
            try:
                status, answer = _attendant().ask(asked, data)
                break
            except (EOFError, BrokenPipeError):
                _dismiss()
                if is_last:
                    raise Stuck("the process that reads PDFs was killed twice") from None
            except BaseException:  # an interrupt: its answer would be taken for that of the next file
                _dismiss()
                raise
    if status == -signal.SIGKILL:  # not by a limit of ours: the same file may be read another time
        raise Stuck("the process that read it was killed; look for the kernel's out-of-memory killer")
    if status == -signal.SIGXCPU:
        raise Unread("too_slow", f"takes more than max_seconds {max_seconds} of a processor")
    if status == -signal.SIGALRM:
        raise Stuck(f"no answer in {_PATIENCE * max_seconds:,} seconds, and the processor is not at work")
    if status:
        raise Unread("parser_died", f"pdfium ended with {_status_name(status)}")
    told = json.loads(answer)
    if "reason" in told:
        raise Unread(told["reason"], told["detail"])
    return Layer(told["pages"], told["facts"])


def _status_name(status: int) -> str:
    return signal.Signals(-status).name if -status in set(signal.Signals) else f"status {status}"


class _Attendant:
    def __init__(self) -> None:
        command = [sys.executable, "-c", _CHILD.format(path=sys.path)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._asking, self._answers = self._process.stdin, self._process.stdout
        try:
            if missing := json.loads(self._line()).get("missing"):
                raise NotInstalled(missing)
        except BaseException:
            self.close()
            raise

    def ask(self, asked: dict[str, int], data: bytes) -> tuple[int, bytes]:
        self._asking.write(json.dumps(asked).encode() + b"\n")
        self._asking.write(data)
        self._asking.flush()
        told = json.loads(self._line())
        answer = self._answers.read(told["bytes"])
        if len(answer) < told["bytes"]:
            raise EOFError
        return told["status"], answer

    def _line(self) -> bytes:
        line = self._answers.readline()
        if not line:
            raise EOFError
        return line

    def close(self) -> None:
        self._process.kill()  # closing its input would do, had no forked process the other end as well
        self._process.wait()
        with contextlib.suppress(BrokenPipeError):
            self._asking.close()
        self._answers.close()


_LOCK = threading.Lock()  # Dask may have several threads in a worker
_ATTENDANTS: dict[int, _Attendant] = {}  # by process: one that was forked has its own


def _attendant() -> _Attendant:
    here = os.getpid()
    if here not in _ATTENDANTS:
        _ATTENDANTS[here] = _Attendant()
    return _ATTENDANTS[here]


@atexit.register
def _dismiss() -> None:
    attendant = _ATTENDANTS.pop(os.getpid(), None)
    if attendant is not None:
        attendant.close()


# --- in the attendant ---


def attend() -> None:
    """Answer until standard input ends."""
    asked, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    try:
        pdfium = _load_pdfium()
    except ImportError as error:
        _send(answers, json.dumps({"missing": error.name}).encode())
        return
    _send(answers, b"{}")
    while line := asked.readline():
        told = json.loads(line)
        data = asked.read(told["bytes"])
        if len(data) < told["bytes"]:
            return
        status, answer = _apart(pdfium, data, told["seconds"], told["max_text_bytes"])
        _send(answers, json.dumps({"bytes": len(answer), "status": status}).encode(), answer)


def _send(answers: BinaryIO, line: bytes, data: bytes = b"") -> None:
    answers.write(line + b"\n" + data)
    answers.flush()


def _load_pdfium() -> Any:
    import pypdfium2_raw as pdfium

    kind = ctypes.POINTER(ctypes.c_char)
    nowhere = ctypes.cast(ctypes.c_char_p(b"/dev/null/no-fonts"), kind)
    config = pdfium.FPDF_LIBRARY_CONFIG(version=2, m_pUserFontPaths=(kind * 2)(nowhere))
    pdfium.FPDF_InitLibraryWithConfig(config)
    return pdfium


def _apart(pdfium: Any, data: bytes, seconds: int, max_text_bytes: int) -> tuple[int, bytes]:
    """What a child of its own says of the file, and how it ended."""
    receiving, telling = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            os.close(receiving)
            _bound(seconds, len(data))
            with os.fdopen(telling, "wb") as file:
                file.write(_told(pdfium, data, max_text_bytes))
            status = 0
        finally:
            os._exit(status)
    os.close(telling)
    with os.fdopen(receiving, "rb") as file:
        answer = file.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), answer


def _bound(seconds: int, size: int) -> None:
    signal.alarm(_PATIENCE * seconds)
    for kind, limit in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, _MEMORY_BYTES + _MEMORY_PER_BYTE * size),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        if hard != resource.RLIM_INFINITY:
            limit = min(limit, hard)
        with contextlib.suppress(ValueError, OSError):  # a system that does not have this one
            resource.setrlimit(kind, (limit, hard if kind == resource.RLIMIT_CPU else limit))


def _told(pdfium: Any, data: bytes, max_text_bytes: int) -> bytes:
    try:
        told: dict[str, Any] = _layer(pdfium, data, max_text_bytes)._asdict()
    except Unread as unread:
        told = dict(zip(("reason", "detail"), unread.args, strict=True))
    except MemoryError:
        told = {"reason": "parser_died", "detail": "asks for more memory than a file may have"}
    return json.dumps(told).encode()


def _layer(pdfium: Any, data: bytes, max_text_bytes: int) -> Layer:
    document = pdfium.FPDF_LoadMemDocument64(data, len(data), None)
    if not document:
        if pdfium.FPDF_GetLastError() in (pdfium.FPDF_ERR_PASSWORD, pdfium.FPDF_ERR_SECURITY):
            raise Unread("encrypted", "needs a password, or an encryption that is not known")
        raise Unread("corrupt_pdf", "pdfium finds no document in it")
    count = pdfium.FPDF_GetPageCount(document)
    if count > MAX_PAGES:
        raise Unread("too_large", f"{count:,} pages; at most {MAX_PAGES:,} are read")
    facts = {name: fact for name in _FACTS if (fact := _fact(pdfium, document, name))}
    pages, size = list[str | None](), 0
    for text in _texts(pdfium, document, count):
        pages.append(text)
        size += len((text or "").encode())
        if size > max_text_bytes:
            raise Unread("too_large", f"the text is more than max_record_bytes {max_text_bytes:,}")
    return Layer(pages, facts)


def _texts(pdfium: Any, document: Any, count: int) -> Iterator[str | None]:
    for number in range(count):
        page = pdfium.FPDF_LoadPage(document, number)
        layer = pdfium.FPDFText_LoadPage(page) if page else None
        if not layer:
            yield None
            continue
        chars = max(pdfium.FPDFText_CountChars(layer), 0)
        units = (ctypes.c_ushort * (chars + 1))()
        written = pdfium.FPDFText_GetText(layer, 0, chars, units)
        yield _decoded(units, max(written - 1, 0))
        pdfium.FPDFText_ClosePage(layer)
        pdfium.FPDF_ClosePage(page)


def _decoded(units: Any, count: int) -> str:
    """A hyphen that ends a line comes as U+FFFE, without the end of the line."""
    text = bytes(memoryview(units).cast("B")[: 2 * count]).decode("utf-16-le", "replace")
    return text.replace("\r\n", "\n").replace("\ufffe", "-\n").strip()


def _fact(pdfium: Any, document: Any, name: str) -> str:
    """Of the document's own information; one that goes on and on is none."""
    size = pdfium.FPDF_GetMetaText(document, name.encode(), None, 0)
    if not 2 < size <= _MAX_FACT_BYTES:
        return ""
    buffer = ctypes.create_string_buffer(size)
    pdfium.FPDF_GetMetaText(document, name.encode(), buffer, size)
    return buffer.raw[: size - 2].decode("utf-16-le", "replace").strip()
