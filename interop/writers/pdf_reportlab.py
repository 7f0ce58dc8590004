"""RECORDS as PDFs, one each, by reportlab: python interop/writers/pdf_reportlab.py RECORDS OUT"""

import json
import sys
from pathlib import Path

import reportlab
from reportlab.pdfgen import canvas

SOURCE = {"files": "*.pdf", "pdf": {}}
AS = {"compare": ["words"], "encoding": "latin-1"}  # a page shows words, here in a font of Latin letters


def main(records: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    texts = [json.loads(line)["text"] for line in records.read_bytes().split(b"\n") if line]
    held = [text for text in texts if text.encode("latin-1", "ignore").decode("latin-1") == text]
    for number, held_text in enumerate(held):
        made = canvas.Canvas(str(out / f"{number:05d}.pdf"), pageCompression=number % 2, invariant=1)
        lines = held_text.expandtabs().splitlines()
        for at in range(0, len(lines), 50):
            text = made.beginText(36, 760)
            for line in lines[at : at + 50]:
                text.textLine(line)
            made.drawText(text)
            made.showPage()
        made.save()
    print(json.dumps({"package": "reportlab", "version": reportlab.__version__}))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
