"""The container image, built and run without a container engine: `make try-image`. Needs root.

CI reaches no registry of images: the base is made by mmdebstrap of the Debian packages of the Dockerfile's own. The
image's interpreter also passes the tests of `.ci/pythons`.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.deploy import DEPLOY, ROOT, VERSION

WORK: Final = ROOT / "build" / "image"
BASE: Final = "localhost/base"
STORE: Final = ("buildah", "--storage-driver=vfs", f"--root={WORK / 'storage'}", f"--runroot={WORK / 'run'}")
ISOLATED: Final = "--isolation=chroot"
INSTALLED: Final = Path(os.environ.get("PYTHONS_IN", "/var/tmp/taskgate-pythons")) / "trixie" / "venv"
ADMIN_PORT: Final = "19090"
START_S: Final = 30.0


def run(*command: str | Path, **kwargs: Any) -> "subprocess.CompletedProcess[str]":
    print("+", shlex.join(map(str, command)), flush=True)
    return subprocess.run(command, check=True, text=True, cwd=ROOT, **kwargs)


def build() -> None:
    """`make image`, on a base of Debian's packages."""
    tree = WORK / "trixie.tar"
    if not tree.exists():
        run("mmdebstrap", "--quiet", "--variant=minbase", "trixie", WORK / "part.tar")
        (WORK / "part.tar").rename(tree)
    (WORK / "Dockerfile").write_text(f"FROM scratch\nADD {tree.name} /\n")
    run(*STORE, "build", ISOLATED, f"--tag={BASE}", WORK)
    more = [ISOLATED, "--pull-never", "--format=docker", f"--build-arg=BASE={BASE}:latest", *_trusted()]
    more.append(f"--ignorefile={DEPLOY / 'Dockerfile.dockerignore'}")
    run("make", "image", f"BUILDER={shlex.join(STORE)}", f"ARGS={shlex.join(more)}")


def _trusted() -> list[str]:
    """Arguments that give the build the certificates that this machine's pip trusts, if it names them."""
    if "PIP_CERT" not in os.environ:
        return []
    settings = WORK / "pip.conf"
    settings.write_text("[global]\ncert = /trusted.crt\n")
    return [f"--volume={settings}:/etc/pip.conf:ro", f"--volume={os.environ['PIP_CERT']}:/trusted.crt:ro"]


def check_description() -> None:
    """The image names itself, its version, its user and its command."""
    said = run(*STORE, "inspect", "--type=image", f"taskgate:{VERSION}", capture_output=True).stdout
    described = json.loads(said)["Docker"]["config"]
    labels = described["Labels"]
    assert labels["org.opencontainers.image.version"] == VERSION, labels
    assert len(labels["org.opencontainers.image.revision"]) == 40, labels
    assert described["User"] == "10001:10001"
    assert described["Entrypoint"][2:] == ["/opt/taskgate/bin/taskgate"]
    assert set(described["ExposedPorts"]) == {"8080/tcp", "9090/tcp"}


def health_command() -> list[str]:
    _, _, given = (DEPLOY / "Dockerfile").read_text().replace("\\\n", "").partition("HEALTHCHECK")
    command: list[str] = json.loads(given.partition("CMD ")[2].splitlines()[0])
    return command


def check_contents(inside: Sequence[str]) -> None:
    """No pip, and no file that the user of the image can write."""
    python = "/opt/taskgate/bin/python"
    find_pip = "import importlib.util; print(importlib.util.find_spec('pip'))"
    found = run(*inside, python, "-c", find_pip, capture_output=True)
    assert found.stdout == "None\n", found.stdout
    # `find` fails at folders that this user may not read.
    listed = "find / -xdev -path '*bin/pip*' 2>/dev/null; find / -xdev -type f -writable 2>/dev/null; id -u"
    files = run(*inside, "sh", "-c", listed, capture_output=True)
    assert files.stdout == "10001\n", files.stdout


def check_serving(inside: Sequence[str]) -> None:
    """The demo's answers are right; the health check tells a gateway that serves from one that does not."""
    run(*inside, "/opt/taskgate/bin/taskgate", "demo", "--once", stdout=subprocess.DEVNULL)
    check = [*inside, "env", f"TASKGATE_ADMIN_PORT={ADMIN_PORT}", *health_command()]
    assert subprocess.run(check, stderr=subprocess.DEVNULL).returncode != 0, "nothing serves yet"
    flags = ["--upstream", "http://127.0.0.1:9/mcp", "--listen", "127.0.0.1:0", "--admin", f"127.0.0.1:{ADMIN_PORT}"]
    gateway = subprocess.Popen([*inside, "/opt/taskgate/bin/taskgate", *flags])
    try:
        deadline = time.monotonic() + START_S
        while subprocess.run(check, stderr=subprocess.DEVNULL).returncode != 0:
            assert gateway.poll() is None and time.monotonic() < deadline, "the health check finds nothing"
            time.sleep(0.2)
    finally:
        gateway.terminate()
        gateway.wait()


def check_tests(container: str) -> None:
    """The interpreter of the image runs what .ci/pythons runs on Debian 13, with the packages installed there."""
    mounted = [f"--volume={INSTALLED}:/venv:ro", f"--volume={ROOT}:/repo:ro", "--workingdir=/repo", "--user=0"]
    inside = [*STORE, "run", ISOLATED, *mounted, container, "--"]
    python = ("env", "PYTHONHASHSEED=0", "HYPOTHESIS_STORAGE_DIRECTORY=/tmp/hypothesis", "/venv/bin/python", "-B")
    more = ("-q", "-n", "6", "-p", "no:cacheprovider", "-k", "not descriptors_are_raised")  # buildah allows 1,024
    quick = ("tests/rules", "tests/test_config.py", "tests/relay")
    run(*inside, *python, "-m", "pytest", *more, *quick)
    run(*inside, *python, "-m", "tests.model", "--histories", "300")


def main() -> None:
    missing = [name for name in ("buildah", "mmdebstrap") if shutil.which(name) is None]
    if missing:
        sys.exit(f"not installed: apt-get install {' '.join(missing)}")
    if not INSTALLED.exists():
        sys.exit(f"{INSTALLED} is missing, with which the image's Python is tested: .ci/pythons trixie makes it")
    WORK.mkdir(parents=True, exist_ok=True)
    build()
    check_description()
    container = run(*STORE, "from", "--pull-never", f"taskgate:{VERSION}", capture_output=True).stdout.strip()
    inside = [*STORE, "run", ISOLATED, container, "--"]
    try:
        check_contents(inside)
        check_serving(inside)
        check_tests(container)
    finally:
        run(*STORE, "rm", container, stdout=subprocess.DEVNULL)
    print(f"taskgate:{VERSION} is built and runs")


if __name__ == "__main__":
    main()
