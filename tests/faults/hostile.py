"""A process that feeds readers with damaged files, each batch in a child of its own that may crash,
hang or grow.

    stdin   {"target": name, "seed": n, "first": n, "count": n}
    stdout  {"read": n, "refused": n, "faults": [...]}        read: as if nothing was wrong;
                                                              refused: by a TokmillError

A child has a bound on its memory and an alarm for each example.
What ends it is a fault of the example that it was at, and the next child goes on behind it.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import sys
import traceback
from pathlib import Path

from faults.mutation import mutate
from faults.readers import Target, prepare, targets
from tokmill.errors import TokmillError

# Readers hold a few records of at most 64 KB; a length in a header that is believed asks for more than this.
MEMORY_BYTES = 256 << 20
# Every example is read in milliseconds on an idle machine.
HANGS_AFTER_SECONDS = 120
# Of one child. Arrow's LZ4 stream keeps half a megabyte of address space for every file that it cannot read.
MAX_EXAMPLES = 250


def damaged(target: Target, chance: random.Random, directory: Path) -> Path:
    """One damaged copy of the target; what is to be read of it."""
    shutil.rmtree(directory, ignore_errors=True)
    if target.directory is not None:
        shutil.copytree(target.directory, directory)
        victims = [path for path in sorted(directory.rglob("*")) if path.is_file()]
        victim = chance.choice(victims)
        victim.write_bytes(mutate(victim.read_bytes(), chance, chance.choice(victims).read_bytes()))
        return directory
    directory.mkdir()
    (name, plain), *_ = target.files.items()
    data = plain
    if target.is_bomb:
        (directory / name).write_bytes(data)
        return directory / name
    if target.wrap is None or chance.random() < 0.5:
        data = mutate(data, chance, plain)
    if target.wrap is not None:
        packed = target.wrap(data)
        data = packed if data != plain else mutate(packed, chance, packed)
    (directory / name).write_bytes(data)
    return directory / name


def try_one(target: Target, seed: str, directory: Path) -> str:
    """ "read", "refused", or what went wrong."""
    path = damaged(target, random.Random(seed), directory)
    try:
        found, counted = target.read(path)
    except TokmillError as error:
        return "refused" if error.what else "an error that says nothing"
    except Exception:
        return traceback.format_exc(limit=-6)
    if counted is not None and counted != found:
        return f"{found} records were read, and there are {counted}"
    return "read"


def bound_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGESIZE") + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def feed(target: Target, name: str, seed: int, numbers: list[int], directory: Path, answers: int) -> None:
    """In a child: one line per example, before and after it."""
    bound_memory()
    for number in numbers:
        os.write(answers, json.dumps([number, "begun"]).encode() + b"\n")
        signal.alarm(HANGS_AFTER_SECONDS)
        verdict = try_one(target, f"{name} {seed} {number}", directory)
        os.write(answers, json.dumps([number, verdict]).encode() + b"\n")
    os._exit(0)


def feed_all(target: Target, name: str, seed: int, numbers: list[int], scratch: Path) -> dict[str, object]:
    verdicts: dict[int, str] = {}
    while left := [number for number in numbers if number not in verdicts]:
        receiving, answers = os.pipe()
        child = os.fork()
        if not child:
            os.close(receiving)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what C libraries say of damage
            feed(target, name, seed, left[:MAX_EXAMPLES], scratch / "victim", answers)
        os.close(answers)
        at = left[0]
        with os.fdopen(receiving) as lines:
            for line in lines:
                at, verdict = json.loads(line)
                if verdict != "begun":
                    verdicts[at] = verdict
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status:
            kind = "hangs" if status == -signal.SIGALRM else f"ends the process with {status}"
            verdicts[at] = kind
    return {
        "read": sum(verdict == "read" for verdict in verdicts.values()),
        "refused": sum(verdict == "refused" for verdict in verdicts.values()),
        "faults": [
            f"{name}, seed {seed}, example {number}: {verdict}"
            for number, verdict in sorted(verdicts.items())
            if verdict not in ("read", "refused")
        ],
    }


def serve(scratch: Path) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    maker = os.fork()
    if not maker:
        prepare(scratch)
        os._exit(0)
    assert os.waitpid(maker, 0)[1] == 0
    known = targets(scratch)
    for name, target in known.items():  # undamaged, all of them can be read; and what they need is loaded
        if "tokenizer" not in name and not target.is_bomb:
            (scratch / "whole").mkdir()
            path = target.directory or scratch / "whole" / next(iter(target.files))
            if target.directory is None:
                data = next(iter(target.files.values()))
                path.write_bytes(target.wrap(data) if target.wrap else data)
            found, counted = target.read(path)
            assert found
            assert counted in (None, found), name
            shutil.rmtree(scratch / "whole")
    print(json.dumps(sorted(known)), file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        numbers = list(range(asked["first"], asked["first"] + asked["count"]))
        found = feed_all(known[asked["target"]], asked["target"], asked["seed"], numbers, scratch)
        print(json.dumps(found), file=answers, flush=True)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
