"""RECORDS as the files of a git checkout: python interop/writers/git_checkout.py RECORDS OUT"""

import json
import subprocess
import sys
from pathlib import Path

SOURCE = {"directory": {"path": "clone"}, "license": "MIT"}
AS = {"id": "notes/{id}.txt", "license": "MIT"}


def git(*arguments: str | Path) -> str:
    told = ["-c", "user.name=interop", "-c", "user.email=interop@example.org", "-c", "core.autocrlf=false"]
    return subprocess.run(["git", *told, *arguments], check=True, capture_output=True, text=True).stdout


def main(records: Path, out: Path) -> None:
    rows = [json.loads(line) for line in records.read_bytes().split(b"\n") if line]
    made, clone = out / "made", out / "clone"
    (made / "notes").mkdir(parents=True)
    for row in rows:
        (made / "notes" / f"{row['id']}.txt").write_bytes(row["text"].encode())
    (made / ".gitignore").write_text("/build/\n*.tmp.txt\n!keep.tmp.txt\n")
    git("init", "-q", made)
    git("-C", made, "add", ".")
    git("-C", made, "commit", "-qm", "notes")
    git("clone", "-q", made, clone)
    (clone / "build").mkdir()
    for name in ("build/a.txt", "notes/b.tmp.txt"):  # what git leaves out is no document
        (clone / name).write_text("left out")
    print(json.dumps({"package": "git", "version": git("--version").split()[2]}))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
