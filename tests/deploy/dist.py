"""What `make dist` has built, tried as a user gets it, in a fresh environment: `python -m tests.deploy.dist FOLDER`."""

import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path
from typing import Final

from tests.deploy import DEPLOY, ROOT, VERSION

NEEDED: Final = {
    *("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "config.example.yaml"),
    *("deploy/dashboard.json", "docs/configuration.md", "docs/operating.md", "docs/troubleshooting.md"),
    "gateway/py.typed",
}


def check_contents(wheel: Path, source: Path) -> None:
    """The wheel has the package alone; the source distribution has what it is built from, and what operators need."""
    with zipfile.ZipFile(wheel) as archive:
        folders = {name.split("/")[0] for name in archive.namelist()}
        assert folders == {"gateway", f"taskgate-{VERSION}.dist-info"}, folders
        package = {str(path.relative_to(ROOT)) for path in (ROOT / "gateway").glob("**/*") if path.is_file()}
        wanted = {name for name in package if "__pycache__" not in name}
        assert wanted <= set(archive.namelist()), wanted - set(archive.namelist())
    with tarfile.open(source) as archive:
        names = {name.removeprefix(f"taskgate-{VERSION}/") for name in archive.getnames()}
    missing = NEEDED - names
    assert not missing, missing
    unwanted = {name for name in names if name.startswith(("tests/", ".git/", "dist/")) or "__pycache__" in name}
    assert not unwanted, unwanted


def check_installed(file: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        bin = Path(folder) / "bin"
        pip: list[str | Path] = [bin / "python", "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, "--constraint", DEPLOY / "constraints.txt", file], check=True, cwd=folder)
        said = subprocess.run([bin / "taskgate", "--version"], check=True, cwd=folder, capture_output=True, text=True)
        assert said.stdout == f"taskgate {VERSION}\n", said.stdout
        shown = subprocess.run([bin / "taskgate", "demo", "--once"], cwd=folder, capture_output=True, text=True)
        assert shown.returncode == 0, shown.stdout + shown.stderr
    print(f"{file.name}: installed in a fresh environment; taskgate {VERSION} runs")


def main() -> None:
    """Check all files in the folder that the first argument names."""
    folder = Path(sys.argv[1]).resolve()
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    check_contents(wheel, source)
    check_installed(wheel)  # it was built from the source distribution


if __name__ == "__main__":
    main()
