"""Install packages with pip, in one line that counts them: `python deploy/install.py VENV WHAT COUNT ARGUMENTS...`.

In: the environment, made if it is missing; words for what is installed; how many packages that is; arguments of `pip
install`. Out: one line. Without a terminal it ends when pip does. What pip said is shown if it fails, and its status is
this command's.
"""

import subprocess
import sys
from pathlib import Path


def install(venv: Path, what: str, count: int, arguments: list[str]) -> int:
    """Returns the exit status."""
    is_terminal = sys.stdout.isatty()

    def show(progress: str) -> None:
        if is_terminal:
            print(f"\r\033[K{line}: {progress}", end="", flush=True)

    line = f"Once, into {venv}: {what}"
    print(line, end="", flush=True)
    if not (venv / "bin/pip").exists():
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    pip = [str(venv / "bin/python"), "-m", "pip", "--disable-pip-version-check", "install", *arguments]
    said, found = [], 0
    with subprocess.Popen(pip, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for text in process.stdout or ():
            said.append(text)
            if text.startswith(("Collecting ", "Processing ")):  # from an index, or a file
                found += 1
                show(f"{found} of {count} packages")
            elif text.startswith("Installing collected packages"):
                show(f"{found} packages, unpacking")
    show(f"{found} packages")
    print("" if is_terminal else f": {found} packages")
    if process.returncode:
        sys.stderr.writelines(said)
    return process.returncode


if __name__ == "__main__":
    _, venv, what, count, *arguments = sys.argv
    sys.exit(install(Path(venv), what, int(count), arguments))
