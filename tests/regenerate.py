"""Run everything behind results/ from one commit: `make results`, or

    python tests/regenerate.py [STEP ...] [--plan] [--jobs 2] [--data DATA]

results/plan.toml has the steps. The plan is printed first: what runs, how long it may take, where it is kept.
All is kept in build/results/<commit>, so that the same command resumes: finished steps are not repeated, runs
go on from their checkpoints. A step that fails is reported and does not stop the others. When every step that
was asked for is done, its files are copied to results/, and `page_numbers.py` puts numbers into pages.
Changes that are not committed are refused: a result names its commit.
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
PLAN = RESULTS / "plan.toml"
SOURCES = ("src", "tests", "results/plan.toml")
KINDS = (".json", ".csv", ".png")  # files of an experiment that are kept


class Step(NamedTuple):
    """One entry of results/plan.toml."""

    name: str
    minutes: float  # of processor time, estimated
    experiment: str = ""  # words after `compound run`
    command: str = ""
    page: str = ""  # in results/: what the command prints is put between its markers
    prints: str = ""  # in results/: a file of what the command prints
    writes: tuple[str, ...] = ()  # files that the command leaves in OUT
    picture: str = ""  # where the experiment's picture goes, and nothing else of it

    @property
    def prefix(self) -> str:
        """How the files of an experiment begin in results/, such as "toy-quick"."""
        name, *options = self.experiment.split()
        preset = options[options.index("--preset") + 1] if "--preset" in options else "quick"
        return f"{name}-{preset}"

    def words(self, folder: Path, data: Path, jobs: int) -> list[str]:
        """The command line; `folder` is that of all steps of this commit."""
        out = folder / "steps" / self.name
        if self.experiment:
            places = f" --jobs {jobs} --runs RUNS --out OUT/report --json OUT/{self.prefix}.json"
            text = f"compound run {self.experiment}{places}"
        else:
            text = self.command
        places_of = {"DATA": data, "OUT": out, "RUNS": folder / "runs"}
        words = []
        for word in shlex.split(text):
            first, slash, rest = word.partition("/")
            words.append(f"{places_of[first]}{slash}{rest}" if first in places_of else word)
        program = [sys.executable, "-m", "compound"] if words[0] == "compound" else [sys.executable]
        return [*program, *words[1:]]


def steps() -> list[Step]:
    """All steps of the plan, in order."""
    content = tomllib.loads(PLAN.read_text())["step"]
    return [Step(**{**entry, "writes": tuple(entry.get("writes", ()))}) for entry in content]


def chosen_steps(names: list[str]) -> list[Step]:
    """The steps with these names, all of them without names; ValueError for an unknown one."""
    known = {step.name: step for step in steps()}
    for name in names:
        if name not in known:
            raise ValueError(f"step is {name!r}: results/plan.toml has {', '.join(known)}")
    return [known[name] for name in names] or list(known.values())


def commit() -> str:
    """The commit of this checkout; ValueError if what it measures has changes that are not committed."""
    changed = git("status", "--porcelain", "--untracked-files=no", "--", *SOURCES)
    if changed:
        raise ValueError(f"commit first, every result names its commit; changed are\n{changed}")
    return git("rev-parse", "HEAD")


def git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def print_plan(chosen: list[Step], folder: Path, jobs: int) -> None:
    for step in chosen:
        state = (
            "done" if is_done(step, folder) else "begun" if (folder / "steps" / step.name).exists() else ""
        )
        words = step.command or f"compound run {step.experiment}"
        print(f"{step.name:16}{step.minutes:6.0f} min  {state:6}{words}")
    rest = sum(step.minutes for step in chosen if not is_done(step, folder))
    print(f"about {rest / 60:.1f} hours of processor time to go; experiments have {jobs} processes")
    print(f"kept in {folder}")


def is_done(step: Step, folder: Path) -> bool:
    return (folder / "steps" / step.name / "done").exists()


def perform(step: Step, folder: Path, data: Path, jobs: int) -> bool:
    """Whether the step has ended well; what it prints is in printed.txt, its errors in errors.txt."""
    out = folder / "steps" / step.name
    out.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        "COMPOUND_DATA": str(data),
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT / 'tests'}",
    }
    with open(out / "printed.txt", "w") as printed, open(out / "errors.txt", "w") as errors:
        words = step.words(folder, data, jobs)
        code = subprocess.run(words, cwd=ROOT, env=environment, stdout=printed, stderr=errors).returncode
    if code == 0:
        (out / "done").write_text(shlex.join(words) + "\n")
    return code == 0


def publish(step: Step, folder: Path, revision: str) -> list[Path]:
    """Copy what a finished step has left to results/; the files that were written."""
    out = folder / "steps" / step.name
    pairs = []
    if step.experiment:
        name = step.experiment.split()[0]
        report = out / "report" / name
        if step.picture:
            pairs = [(report / f"{name}.png", ROOT / step.picture)]
        else:
            found = [file for file in report.glob(f"{name}*") if file.suffix in KINDS]
            pairs = [(file, RESULTS / file.name.replace(name, step.prefix, 1)) for file in found]
            pairs.append((out / f"{step.prefix}.json", RESULTS / f"{step.prefix}.json"))
    pairs += [(out / name, RESULTS / name) for name in step.writes]
    if step.prints:
        pairs.append((out / "printed.txt", RESULTS / step.prints))
    for source, target in pairs:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    if step.page:
        page = RESULTS / step.page
        text = f"`{step.command}`, commit {revision[:7]}.\n\n{(out / 'printed.txt').read_text().strip()}"
        page.write_text(between(page.read_text(), "measured", f"\n{text}\n"))
        pairs.append((out / "printed.txt", page))
    return [target for _, target in pairs]


def between(page: str, name: str, text: str) -> str:
    """The page with `text` between its markers of this name; ValueError if they do not stand there once."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    if page.count(begin) != 1 or page.count(end) != 1:
        raise ValueError(f"{begin} and {end} must stand once in the page")
    head, rest = page.split(begin)
    return f"{head}{begin}{text}{end}{rest.split(end)[1]}"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("steps", nargs="*")
    parser.add_argument("--plan", action="store_true", help="only print the plan")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--data", type=Path, default=os.environ.get("COMPOUND_DATA"))
    options = parser.parse_args(arguments)
    chosen = chosen_steps(options.steps)
    revision = git("rev-parse", "HEAD") if options.plan else commit()
    folder = ROOT / "build" / "results" / revision[:12]
    print_plan(chosen, folder, options.jobs)
    if options.plan:
        return 0
    if options.data is None:
        raise ValueError("no folder of data sets: give --data, or set COMPOUND_DATA")
    failed = []
    for step in chosen:
        if not is_done(step, folder):
            print(f"{step.name} ...", flush=True)
            if not perform(step, folder, options.data.resolve(), options.jobs):
                failed.append(step.name)
                print(f"{step.name} failed: {folder / 'steps' / step.name / 'errors.txt'}", flush=True)
    if failed:
        print(f"{len(failed)} steps failed, results/ is as it was: the same command tries again")
        return 1
    for step in chosen:
        for path in publish(step, folder, revision):
            print(f"written: {path.relative_to(ROOT)}")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    words = [sys.executable, str(ROOT / "tests" / "page_numbers.py")]
    return subprocess.run(words, cwd=ROOT, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
