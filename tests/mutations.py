"""Break each method on purpose and see which test notices: python tests/mutations.py [method ...]

Every entry of tests/mutants/<method>.toml is one mistake: in `file`, `old` (which stands there once) becomes
`new`. The package is copied, the mistake made in the copy, and the method's own tests run against it, then
the laws; a mistake of ops.toml has the tests of its operation, and other files, such as piecewise.toml and
table_files.toml, have only test_<file>.py.
Their rows of the table in tests/README.md are written anew.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src" / "compound"
BEGIN, END = "<!-- mutations: begin -->", "<!-- mutations: end -->"


class Mutant(NamedTuple):
    method: str
    words: str
    file: str
    old: str
    new: str


def mutants(names: list[str] | None = None) -> list[Mutant]:
    files = sorted((TESTS / "mutants").glob("*.toml"))
    chosen = [file for file in files if not names or file.stem in names]
    return [
        Mutant(file.stem, **entry) for file in chosen for entry in tomllib.loads(file.read_text())["mutant"]
    ]


def broken(mutant: Mutant) -> str:
    """The text of the file with the mistake in it."""
    text = (SOURCE / mutant.file).read_text()
    found = list(re.finditer(_any_layout(mutant.old), text))
    if len(found) != 1:
        where = f"{mutant.method}, {mutant.words}"
        raise ValueError(f"{where}: {mutant.old!r} stands {len(found)} times in {mutant.file}, not once")
    return text[: found[0].start()] + mutant.new + text[found[0].end() :]


def _any_layout(code: str) -> str:
    """A pattern that finds the code however its lines are broken, with or without a trailing comma."""
    tokens = re.findall(r"\w+|\s+|[^\w\s]", code.strip())
    closing = r",?\s*"
    words = (
        r"\s+"
        if t.isspace()
        else closing + re.escape(t)
        if t in ")]}"
        else re.escape(t) + (r"\s*" if t in "([{" else "")
        for t in tokens
    )
    before, after = code[: len(code) - len(code.lstrip())], code[len(code.rstrip()) :]
    return re.escape(before) + "".join(words) + re.escape(after)


def caught_by(mutant: Mutant) -> str | None:
    """The first test that fails, or None."""
    own = TESTS / "models" / f"test_{mutant.method.replace('-', '_')}.py"
    laws = [str(TESTS / "models" / "test_laws.py"), "-k", f"{mutant.method}-"]
    name = f"ops/test_{Path(mutant.file).stem}.py" if mutant.method == "ops" else f"test_{mutant.method}.py"
    runs = [[str(own)], laws] if own.exists() else [[str(next(TESTS.rglob(name)))]]
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "compound"
        shutil.copytree(SOURCE, package, ignore=shutil.ignore_patterns("__pycache__"))
        (package / mutant.file).write_text(broken(mutant))
        environment = {
            **os.environ,
            "PYTHONPATH": folder,
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        for words in runs:
            command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *words]
            done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=TESTS.parent)
            if done.returncode not in (0, 1):
                raise RuntimeError(
                    f"{mutant.method}, {mutant.words}: the tests did not run\n"
                    f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
                )
            if found := re.search(r"^(?:FAILED|ERROR) \S*?(?:::)?(test_\S+)", done.stdout, re.MULTILINE):
                return found[1].split("::", 1)[-1]
    return None


def write(rows: dict[str, list[str]]) -> None:
    """Put the rows of these methods into the table; those of other methods stay."""
    page = TESTS / "README.md"
    head, rest = page.read_text().split(BEGIN)
    former, tail = rest.split(END)
    kept: dict[str, list[str]] = {}
    for line in former.strip().splitlines()[2:]:
        kept.setdefault(line.split("|")[1].strip(), []).append(line)
    table = [line for _, lines in sorted({**kept, **rows}.items()) for line in lines]
    page.write_text(
        "\n".join(
            [
                f"{head}{BEGIN}",
                "| method | mistake | caught by |",
                "| --- | --- | --- |",
                *table,
                f"{END}{tail}",
            ]
        )
    )


def main(names: list[str]) -> int:
    todo = mutants(names)
    for mutant in todo:
        broken(mutant)  # one that cannot be made is found before any work
    rows: dict[str, list[str]] = {}
    missed = 0
    with ThreadPoolExecutor(2) as pool:
        for mutant, test in zip(todo, pool.map(caught_by, todo), strict=True):
            print(
                f"{'caught' if test else 'MISSED'}  {mutant.method}: {mutant.words}  {test or ''}", flush=True
            )
            rows.setdefault(mutant.method, []).append(
                f"| {mutant.method} | {mutant.words} | {f'`{test}`' if test else '**nobody**'} |"
            )
            missed += test is None
    write(rows)
    print(f"{len(todo) - missed} of {len(todo)} caught")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
