"""Words that make a reader guess who does what. `scripts/check` fails if the code has one.

    python scripts/lib/words.py [PATH...]      src, scripts and examples if no path is given

Looks at comments, docstrings and texts, not at names. Say what acts and on what: "the caller",
"the guest", "no process", "a new one", "must", "lack of".
"""

import re
import sys
import tokenize
from pathlib import Path

WORDS = re.compile(
    r"\b(whoever|whomever|whosoever|nobody|somebody|anybody|shall|(?:is|are|was|were) (?-i:none)"
    r"|of (?:ours|theirs)|for want of|anew|whereupon|thereby|lest|puts? out the light"
    r"|be(?:ing)? not|of its own accord|all the same|a stranger's|let go of)\b(?!')",
    re.IGNORECASE,
)
USER = re.compile(r"nobody(?=[\"':]|@)|[\"']nobody|\bnobody \(65534\)")  # the user of that name
PATHS = ("src", "scripts", "examples", "benchmarks")


def texts(path: Path) -> list[tuple[int, str]]:
    """Lines of comments and strings of a module; all lines of another file."""
    if path.suffix != ".py":
        return list(enumerate(path.read_text().splitlines(), start=1))
    found = []
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type in (tokenize.COMMENT, tokenize.STRING):
                lines = token.string.splitlines()
                found += [(token.start[0] + n, line) for n, line in enumerate(lines)]
    return found


def main(arguments: list[str]) -> int:
    count = 0
    for top in map(Path, arguments or PATHS):
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            if not path.is_file() or path.suffix in (".json", ".pyc", ".toml", ".png", ".svg"):
                continue
            if path.name == "words.py" or "escapes" in path.parts:
                continue
            for number, line in texts(path):
                for match in WORDS.finditer(USER.sub("", line)):
                    print(f"{path}:{number}: {match[0]!r}: {line.strip()[:100]}")
                    count += 1
    if count:
        print(f"{count} places to say plainly: see {__file__}", file=sys.stderr)
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
