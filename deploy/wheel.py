"""Make the compiled wheel of a pure one: `python deploy/wheel.py dist/taskgate-*-none-any.whl`.

In: a wheel, and beside its sources in this repository the modules that deploy/compile.py has compiled. Out: a wheel
next to it for this Python, system and C library, with sources and compiled modules. Always: the modules need the C
library alone, so the tag names the one that they were compiled with (PEP 600); an older one refuses the wheel.
"""

import base64
import csv
import hashlib
import io
import sys
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

from packaging.tags import sys_tags

ROOT = Path(__file__).parent.parent


def compiled(wheel: Path) -> Path:
    """The path of the new wheel."""
    tag = next(str(tag) for tag in sys_tags() if tag.platform.startswith(("manylinux", "musllinux")))
    target = wheel.with_name(wheel.name.replace("py3-none-any", tag))
    modules = [*ROOT.glob("gateway/**/*.so"), *ROOT.glob("taskgate__mypyc.*.so")]
    assert len(modules) > 1, "nothing is compiled: make install COMPILED=1"
    with ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    files |= {str(path.relative_to(ROOT)): path.read_bytes() for path in modules}
    [about] = (name for name in files if name.endswith(".dist-info/WHEEL"))
    told = files[about].replace(b"Root-Is-Purelib: true", b"Root-Is-Purelib: false")
    files[about] = told.replace(b"Tag: py3-none-any", b"Tag: " + tag.encode())
    record = about.replace("WHEEL", "RECORD")
    del files[record]
    rows = io.StringIO()
    lines = csv.writer(rows, lineterminator="\n")
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.writerow([name, f"sha256={digest}", len(data)])
    lines.writerow([record, "", ""])
    with ZipFile(target, "w", ZIP_DEFLATED) as archive:
        for name, data in {**files, record: rows.getvalue().encode()}.items():
            archive.writestr(name, data)
    return target


if __name__ == "__main__":
    print(compiled(Path(sys.argv[1])))
