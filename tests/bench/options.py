"""What the command line asks for."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """`sections` in the order in which they run; `rounds` of each interleaved figure; `against`: a commit."""

    sections: tuple[str, ...]
    rounds: int
    against: str
