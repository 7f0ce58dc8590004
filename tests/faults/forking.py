"""A process that has loaded the mill and forks:
each child is a `tokmill` command of its own on a faulty disk.

    stdin   {"arguments": [...], "said": file, "root": dir, "log": file, "mode": n, "at": n}   one JSON object
                                                                                               a line
    stdout  {"status": exit status, or minus the signal}                                       one for each

Started with shim.c preloaded. Loading the mill, its kernels and its tables of Unicode takes five seconds and
a small run a third of one, which is why a thousand of them share it. A child ends without taking Python
apart: that takes 0.75 s of its 1.07, in pages that the fork shared until then, and nothing on disk waits for
it. No tokenizer is used before the fork: its threads would be lost in it.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import importlib
import importlib.metadata
import json
import math
import os
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import NoReturn

import tokmill as mill
from tokmill.artifacts import progress
from tokmill.cli import main
from tokmill.kernels.warm import load_kernels

LIBRARIES = ("gigatoken", "tokenizers", "pyarrow.parquet", "tokmill.cli.recipe", "tokmill.cli.verify")
# A run takes a second. One that takes this long hangs, and its status says SIGALRM.
HANGS_AFTER_SECONDS = 300


def load(recipe: Path) -> None:
    # 0.4 s of each run are spent to look up the versions of packages, which do not change here
    importlib.metadata.version = functools.cache(importlib.metadata.version)
    # one write more, where a run takes longer than the counted one, and every later call has another number
    progress._EVERY_SECONDS = math.inf
    for name in LIBRARIES:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as scratch:
        mill.run(recipe, scratch, workers=1, until="split")
    load_kernels()


def run_child(asked: dict[str, object]) -> NoReturn:
    signal.alarm(HANGS_AFTER_SECONDS)
    said = os.open(str(asked["said"]), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(said, 1)
    os.dup2(said, 2)
    sys.argv = ["tokmill", *map(str, asked["arguments"])]  # type: ignore[call-overload]
    shim = ctypes.CDLL(None)
    shim.fault_arm(
        os.fsencode(str(asked["root"])),
        os.fsencode(str(asked["log"])),
        ctypes.c_int(asked["mode"]),  # type: ignore[arg-type]
        ctypes.c_long(asked["at"]),  # type: ignore[arg-type]
    )
    status = 0
    try:
        main()
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def serve() -> None:
    load(Path(sys.argv[1]))
    answers = os.fdopen(os.dup(1), "w")
    print(json.dumps({"status": 0}), file=answers, flush=True)
    gc.collect()
    gc.freeze()  # what was loaded is not looked through again, and so not copied, in each child
    for line in sys.stdin:
        child = os.fork()
        if not child:
            run_child(json.loads(line))
        _, status = os.waitpid(child, 0)
        print(json.dumps({"status": os.waitstatus_to_exitcode(status)}), file=answers, flush=True)


if __name__ == "__main__":
    serve()
