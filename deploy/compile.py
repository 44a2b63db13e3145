"""Compile the modules that every relayed message passes, with mypyc: less CPU, the same behaviour.

In: a `gateway` package that passes mypy --strict. Out: an extension module beside each source in the list below, which
Python takes before the source, and one library that they share. Always: the sources are the reference; nothing needs to
be compiled; without the extension modules (`--remove`) everything runs as written.

A class that inherits from asyncio's protocols cannot be compiled, nor a base of a class that is not: those of
connections, access_log.py and metrics.py are not here.
Run it with the Python that will run the gateway: `python deploy/compile.py [--remove] [FOLDER]`. It needs a C compiler
and the extra `compile`. FOLDER has `gateway` in it; it is this repository unless given.
"""

import argparse
import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

LIBRARY: Final = "taskgate"
MODULES: Final = (
    *("mcp/sse", "operate/recent_failures", "proxy", "response_inspection", "task_ownership_guard"),
    *(f"http/{name}" for name in ("message_reader", "cors", "header_fields", "request_parser", "response_parser")),
    *(f"transport/{name}" for name in ("body_stream", "fair_reading", "memory_budget")),
    *(
        "downstream/exchange",
        "downstream/host_origin_check",
        "downstream/client_request",
        "downstream/client_response",
        "upstream/own_requests",
        "upstream/connection_pool",
    ),
    *(f"relay/{name}" for name in ("body_pump", "body_taps", "http_caller", "routes")),
)


def compile_in(folder: Path) -> None:
    """Compile the modules, apart from all else in the folder. Raises SystemExit with mypy's or the compiler's words."""
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    with TemporaryDirectory(prefix="taskgate-") as work:
        shutil.copytree(folder / "gateway", Path(work) / "gateway", ignore=shutil.ignore_patterns("__pycache__"))
        os.chdir(work)
        options = ["--strict", f"--cache-dir={os.devnull}", *(f"gateway/{module}.py" for module in MODULES)]
        extensions = mypycify(options, opt_level="3", debug_level="0", target_dir="c", group_name=LIBRARY)
        command = build_ext(Distribution({"name": LIBRARY, "ext_modules": extensions}))
        command.build_temp, command.build_lib = "c", "made"
        command.ensure_finalized()
        command.run()
        shutil.copytree("made", folder, dirs_exist_ok=True)
        os.chdir(folder)


def remove_from(folder: Path) -> None:
    """Remove what `compile_in` has left."""
    for module in (*folder.glob("gateway/**/*.so"), *folder.glob(f"{LIBRARY}__mypyc.*.so")):
        module.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description="Compile the modules that every relayed message passes, with mypyc.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent.parent)
    parser.add_argument("--remove", action="store_true", help="remove the compiled modules: sources run again")
    given = parser.parse_args()
    folder = given.folder.resolve()
    remove_from(folder)
    if not given.remove:
        print(f"Compiling {len(MODULES)} modules of {folder / 'gateway'}: about a minute.", flush=True)
        compile_in(folder)


if __name__ == "__main__":
    main()
