"""RECORDS as a mail folder, by the standard library: python interop/writers/mbox_stdlib.py RECORDS OUT"""

import json
import mailbox
import platform
import sys
from email.message import EmailMessage
from pathlib import Path

SOURCE = {"files": "*.mbox", "mbox": {}}
AS = {"compare": ["id", "lines"]}  # mail has no place for a licence, and line ends of its own


def main(records: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    box = mailbox.mbox(out / "a.mbox")
    for line in records.read_bytes().split(b"\n"):
        if line:
            record = json.loads(line)
            message = EmailMessage()
            message["Message-ID"] = f"<{record['id']}>"
            message.set_content(
                record["text"].encode(), "text", "plain", cte="base64", params={"charset": "utf-8"}
            )
            box.add(message)
    box.flush()
    box.close()
    print(json.dumps({"package": "mailbox (Python)", "version": platform.python_version()}))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
