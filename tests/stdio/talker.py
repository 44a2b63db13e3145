"""A server that talks all the time, in lines whose bytes are known (the first is its process id), and also answers."""

import os
import re
import select
import signal
import sys

LINE = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"n":%d,"text":"%b"}}\n'


def line(number: int) -> bytes:
    return LINE % (number, b"x" * (number * 7919 % 30_000))


def main() -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # it may outlive a gateway that is killed by a moment: without a word
    os.write(1, b"%d\n" % os.getpid())
    number = 0
    while True:
        if select.select([0], [], [], 0.001)[0]:
            data = os.read(0, 65536)
            if not data:
                sys.exit(0)
            for own in re.findall(rb'"id":(2[01][0-9]{8})', data):
                os.write(1, b'{"jsonrpc":"2.0","id":%b,"result":{"tasks":[]}}\n' % own)
        rest = line(number)
        while rest:
            rest = rest[os.write(1, rest) :]
        number += 1


if __name__ == "__main__":
    main()
