"""Runs the scripts beside it, two at once, and prints what has changed. `make findings ARGS="redis tls"` chooses.

Each script runs packages of others, in the versions that it names. It ends with 0 if they behave as it says, and with 1
if they do not; any other status says that it could not run. This ends with the worst of them.
"""

import asyncio
import os
import re
import signal
import sys
import time
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path

AT_ONCE = 2
SECONDS_MAX = 600  # of one script
HERE = Path(__file__).parent
AS_KNOWN, CHANGED, NOT_RUN = 0, 1, 2
WORDS = {AS_KNOWN: "as known", CHANGED: "CHANGED", NOT_RUN: "could not run"}


def head(script: Path) -> dict[str, str]:
    """What the comment at its head says under Who, What and Rule."""
    lines = script.read_text().split("\nset ", 1)[0].splitlines()[1:]
    text = re.sub(r"\s+", " ", " ".join(line.lstrip("#") for line in lines))
    return dict(re.findall(r"\b(Who|What|Rule): (.*?)(?= (?:Who|What|Rule): |$)", text))


async def run(script: Path, room: asyncio.Semaphore) -> tuple[Path, int, str]:
    """The script, how it ended, and all that it printed."""
    async with room:
        began = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            "bash", str(script), stdout=PIPE, stderr=STDOUT, start_new_session=True
        )
        try:
            said, _ = await asyncio.wait_for(process.communicate(), SECONDS_MAX)
        except TimeoutError:
            os.killpg(process.pid, signal.SIGTERM)  # its trap removes its folder
            said = f"not ended after {SECONDS_MAX} s".encode()
        ended = process.returncode if process.returncode in (AS_KNOWN, CHANGED) else NOT_RUN
        print(f"{script.stem:45} {time.monotonic() - began:4.0f} s  {WORDS[ended]}", flush=True)
        return script, ended, said.decode(errors="replace")


async def main(chosen: list[str]) -> int:
    scripts = [path for path in sorted(HERE.glob("*.sh")) if not chosen or any(name in path.stem for name in chosen)]
    room = asyncio.Semaphore(AT_ONCE)
    ran = await asyncio.gather(*(run(script, room) for script in scripts))
    for script, ended, said in ran:
        if ended != AS_KNOWN:
            told = head(script)
            print(f"\n{script.stem}: {WORDS[ended]}\n  {told['Who']}\n  It stands under {told['Rule']}")
            print("\n".join(f"  | {line}" for line in said.splitlines()[-20:]))
    counts = ", ".join(f"{sum(ended == word for _, ended, _ in ran)} {WORDS[word]}" for word in WORDS)
    print(f"\n{counts}")
    return max((ended for _, ended, _ in ran), default=NOT_RUN)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
