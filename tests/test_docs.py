"""The documents keep up with the code: citations of the design resolve, and so do links.

A citation is `DESIGN` and the number of a chapter or a rule, or several: "DESIGN 3.8, 3.9", "DESIGN 5.1 to 5.4". In
`docs/design.md` the line of a rule begins with its number, that of a chapter is a heading.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
DESIGN = ROOT / "docs" / "design.md"


def _files(folder: Path) -> Iterator[Path]:
    """The files in a folder, but those of other projects: there are thousands, and every worker looks for files."""
    for path in folder.iterdir():
        if path.is_dir() and path.name not in ("node_modules", "__pycache__"):
            yield from _files(path)
        elif path.is_file():
            yield path


CITING = sorted(
    path
    for found in (*(_files(ROOT / folder) for folder in ("gateway", "tests", "deploy")), ROOT.glob("*.yaml"))
    for path in found
    if path.suffix not in (".pyc", ".so", ".json") and path != Path(__file__)
)
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "deploy/README.md")),
    *sorted((ROOT / "docs").glob("**/*.md")),
]

NUMBER = r"[0-9]+(?:\.[0-9]+)*"
BETWEEN = r"(?:,(?:\s+and)?|\s+and|\s+to)\s+(?:#\s+)?"  # a comment may go on in its next line
CITATION = re.compile(rf"\bDESIGN\b(?:\s+(?:#\s+)?({NUMBER}(?:{BETWEEN}{NUMBER})*))?")
RULE = re.compile(rf"(?:#+ )?({NUMBER})\. ")
FENCE = re.compile(r"^(```|~~~).*?^\1[ \t]*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\]\(\s*<?([^)>\s]+)>?(?:\s+\"[^\"]*\")?\s*\)|^\[[^\]]+\]:\s+(\S+)", re.MULTILINE)
HEADING = re.compile(r"^#{1,6} +(.+?)[ #]*$", re.MULTILINE)


def cited(text: str) -> Iterator[str]:
    """The numbers that a text cites; "" where `DESIGN` names none."""
    for citation in CITATION.finditer(text):
        yield from re.findall(NUMBER, citation[1] or "") or [""]


@cache
def rules() -> Counter[str]:
    lines = FENCE.sub("", DESIGN.read_text()).splitlines()
    return Counter(found[1] for line in lines if (found := RULE.match(line)))


@cache
def anchors(path: Path) -> frozenset[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    found: Counter[str] = Counter()
    for heading in HEADING.findall(FENCE.sub("", path.read_text())):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        found[slug] += 1
    return frozenset(f"{slug}-{n}" if n else slug for slug, count in found.items() for n in range(count))


def relative_links(path: Path) -> list[str]:
    """The targets of a document's links that lead into the repository."""
    text = CODE.sub("", FENCE.sub("", path.read_text()))
    targets = [inline or reference for inline, reference in LINK.findall(text)]
    return [target for target in targets if not re.match(r"[a-z][a-z0-9+.-]*:|//", target, re.IGNORECASE)]


def dead(path: Path, target: str) -> str | None:
    """What is wrong with a link in `path`; None if it leads somewhere."""
    name, _, anchor = target.partition("#")
    file = (path.parent / name).resolve() if name else path
    if not file.is_relative_to(ROOT) or not file.exists():
        return f"{target}: no such file"
    if anchor and anchor not in anchors(file):
        return f"{target}: no such heading"
    return None


def test_every_form_of_a_citation_is_read() -> None:
    text = "DESIGN 3.8, 3.9; (DESIGN 2 and 6), DESIGN 5.1 to 5.4. DESIGN 5.4, 5.8, 6).\n# DESIGN 3.1,\n# 3.2\nDESIGN 7"
    assert sorted(set(cited(text))) == ["2", "3.1", "3.2", "3.8", "3.9", "5.1", "5.4", "5.8", "6", "7"]
    assert list(cited("as the DESIGN says")) == [""]


def test_every_citation_resolves() -> None:
    found = [(path, number) for path in CITING for number in cited(path.read_text())]
    assert len(found) > 50
    unknown = [f"{path.relative_to(ROOT)}: {number or 'no number'}" for path, number in found if number not in rules()]
    assert not unknown, "docs/design.md has no line that begins with these"


def test_no_rule_stands_twice() -> None:
    assert [number for number, count in rules().items() if count > 1] == []


def test_every_relative_link_resolves() -> None:
    found = [(path, target) for path in DOCUMENTS for target in relative_links(path)]
    assert len(found) > 10
    assert [f"{path.relative_to(ROOT)}: {fault}" for path, target in found if (fault := dead(path, target))] == []


def logged() -> Iterator[str]:
    """The messages that the code logs, where they are literal."""
    for path in _files(ROOT / "gateway"):
        for node in ast.walk(ast.parse(path.read_text())) if path.suffix == ".py" else ():
            if isinstance(node, ast.Call) and re.match(r"log\.\w+$", ast.unparse(node.func)):
                parts = (part for argument in node.args for part in ast.walk(argument))
                yield from (p.value for p in parts if isinstance(p, ast.Constant) and isinstance(p.value, str))


def test_every_line_of_the_log_stands_in_the_documents() -> None:
    """Its message, or the beginning of it: the document may leave out what is in brackets."""
    text = (ROOT / "docs" / "metrics.md").read_text()
    assert len(found := set(logged())) > 15
    assert [message for message in found if f"`{message.partition(':')[0]}" not in text] == []


# What docs/clients.md calls servers that are of no one SDK, and what the README does.
KINDS = {
    "any that cuts its list at 50 tasks": "a list cut at 50 tasks",
    "any with the newest first, 50 a page": "newest first, 50 a page",
    "any that filters and does not say so": "a filter of its own, not declared",
}


def test_the_readme_says_of_each_server_whether_it_helps_there_with_the_figures_of_the_documents() -> None:
    def servers(path: Path, heading: str) -> dict[str, str]:
        table = path.read_text().split(f"\n| {heading}", 1)[1].split("\n\n", 1)[0]
        return {row.split(" |")[0].strip("| "): row for row in table.splitlines()[2:]}

    said = {
        name: row for cell, row in servers(ROOT / "README.md", "your server |").items() for name in cell.split("; ")
    }
    minute = servers(ROOT / "docs/clients.md", "server | by hand |")
    assert len(minute) >= 10 and {KINDS.get(name, name) for name in minute} - said.keys() == set()
    for name, row in minute.items():
        if "by hand" in (there := said[KINDS.get(name, name)]):
            cells = [cell.strip() for cell in row.split("|")]
            by_hand = 6 * int(cells[2].split(",")[0])  # a list every 10 s
            assert f"{cells[6]} requests a minute" in there and f"by hand {by_hand} " in there


def test_the_readme_says_first_what_it_is_for_whom_it_is_not_and_how_to_get_it() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) <= 800
    what, picture, whom = re.sub(r"(?m)^#.*\n|^```.*\n", "", text).strip().split("\n\n")[:3]
    assert what.startswith("taskgate is a ") and "filtered `tasks/list`" in what
    assert re.match(r"client +──> +taskgate +──> +MCP server", picture)
    assert whom.startswith("It is for servers of ") and "2026-07-28" in whom
    headings = re.findall(r"(?m)^## (.*)$", text)
    assert headings[:4] == ["Do I need this?", "Install", "What it does", "At your own server"]
    first_screen = "\n".join(text.splitlines()[:50])
    for way in ("git clone", "make run ", "make test ", "pipx install .", "make image "):
        assert way in first_screen
    assert "```python" in text.partition("| | requests you send |")[2].partition("\n## ")[0]


def test_the_documents_can_be_read_in_two_hours() -> None:
    """A bar of a table is no word."""
    words = [
        word for path in (ROOT / "docs").glob("*.md") for word in path.read_text().split() if re.search(r"\w", word)
    ]
    assert len(words) <= 20_000


def test_contributing_is_short_and_the_files_and_targets_that_it_names_are_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert len(text.split()) <= 1500
    named = set(re.findall(r"`((?:gateway|tests|docs|deploy|\.ci)/[\w./-]+)`", text))
    assert len(named) > 20 and [name for name in named if not (ROOT / name).exists()] == []
    targets = set(re.findall(r"`make ([a-z-]+)", text + (ROOT / "README.md").read_text()))
    makefile = (ROOT / "Makefile").read_text()
    assert [target for target in targets if f"\n{target}:" not in makefile] == []


def test_no_document_runs_a_package_that_is_not_published() -> None:
    runs = re.compile(r"\b(uvx|pipx run|pip install|npx(?: -y)?) \"?'?taskgate\b|\"uvx\", *\"args\": *\[\"taskgate\"")
    assert [
        f"{path.relative_to(ROOT)}: {found[0]}"
        for path in DOCUMENTS
        if path.name != "CONTRIBUTING.md"  # it says why
        for found in runs.finditer(path.read_text())
    ] == []


def test_security_md_gives_the_figures_of_hostile_streams() -> None:
    """They were those of an earlier run."""
    text = (ROOT / "docs" / "performance.md").read_text().partition("## Hostile streams")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.split("\n") if line.startswith("| ")]
    at = next(n for n, row in enumerate(rows) if row[0].startswith("500 connections"))
    streams, held = rows[1:at], {row[0]: float(row[2]) for row in rows[at + 1 :]}
    refused = held.pop("1,300 heads, in tiny fields")
    said = " ".join((ROOT / "docs" / "security.md").read_text().split())
    assert streams and len(held) > 5
    assert f"at most {max(float(row[1]) for row in streams):.0f} times the CPU time" in said
    assert f"and {max(float(row[2]) for row in streams):.0f} ms of one turn" in said
    assert f"a ping takes {max(held.values()):.0f} ms at most" in said
    assert f"a ping then waits {refused:.0f} ms" in said
