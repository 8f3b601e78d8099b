"""One page from all finished runs in a folder: every experiment, the paper beside it, what agrees and what does not."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from compound.experiments import EXPERIMENTS, Experiment, load
from compound.experiments.paper_comparison import paper_comparison
from compound.experiments.runs import Result, Run, finished, read, readable, reason
from compound.experiments.select import NAMES as SELECTIONS
from compound.experiments.select import best_of, chosen
from compound.experiments.status import found, survey, unreadable
from compound.experiments.times import draw_times
from compound.report.page import Cell, Claim, Page
from compound.report.plot_styles import method_order

PRESETS = ("paper", "quick")  # in this order


class Overview(NamedTuple):
    runs: int  # on the page
    troubles: list[str]  # runs that could not be read and sections that could not be drawn, and why


class Section(NamedTuple):
    experiment: str
    preset: str  # or a number of steps that no preset has
    results: list[Result]


def overview(root: Path, out: Path, preset: str = "") -> Overview:
    """The page out/index.html and its files; an empty preset means all of them, apart."""
    if preset and preset not in PRESETS:
        raise ValueError(f"preset is {preset!r}: choose {' or '.join(PRESETS)}")
    everything = found(root)
    ended, damaged = readable(
        [run for run in everything if finished(run, root) and run.experiment in EXPERIMENTS], root
    )
    sections, left_out = sort(ended, root)
    sections = [section for section in sections if preset in ("", section.preset)]
    if not sections:
        broken = f", and {len(damaged)} damaged" if damaged else ""
        kind = f" of preset {preset}" if preset else ""
        raise ValueError(f"{root} holds no finished run{kind}{broken}: compound status shows what it holds")
    page = Page("Compound density networks: the experiments of the paper, redone")
    lost = [
        *map(str, damaged),
        *(f"{path} is damaged: nothing else tells which run this was" for path in unreadable(root)),
    ]
    troubles = [*lost]
    bars: list[tuple[Section, Claim]] = []
    _open(page, sections)
    for word in dict.fromkeys(section.preset for section in sections):
        _agreement(
            page,
            word,
            [result for section in sections if section.preset == word for result in section.results],
        )
    for section in sections:
        page.heading(f"{load(section.experiment).TITLE} ({_words(section.preset)})")
        page.prefix = f"{section.preset.replace(' ', '-')}-"
        try:
            claims = load(section.experiment).draw(section.results, page)
        except Exception as error:  # the other sections must not suffer
            troubles.append(f"{section.experiment} ({section.preset}) could not be drawn: {reason(error)}")
            page.text(troubles[-1])
            continue
        bars += [(section, bar) for bar in claims]
    page.prefix = ""
    _close(page, sections, bars, [run for run in everything if not finished(run, root)], left_out, root, lost)
    page.write(out / "index.html")
    return Overview(sum(len(section.results) for section in sections), troubles)


def sort(runs: Sequence[Run], root: Path) -> tuple[list[Section], list[Run]]:
    """Sections that mix nothing, paper first, and the runs that fit in none.

    Of runs that differ only in options, those of the present grid are shown (with the chosen λ, where one was chosen); where
    there is none of them, those with the commonest options.
    """
    sections, left_out = [], []
    for name in EXPERIMENTS:
        own = [run for run in runs if run.experiment == name]
        if not own:
            continue
        groups: dict[str, list[Run]] = {}
        plans = {word: _plan(load(name), word, own) for word in PRESETS}
        for run in own:
            groups.setdefault(_preset(run, plans), []).append(run)
        for word in sorted(
            groups, key=lambda word: (PRESETS.index(word) if word in PRESETS else len(PRESETS), word)
        ):
            keys = {run.key for run in _with_choice(plans.get(word, []), word, runs, root)}
            kept = _kept(groups[word], keys)
            sections.append(Section(name, word, [read(run, root) for run in kept]))
            left_out += [run for run in groups[word] if run not in kept]
    order = {word: number for number, word in enumerate(PRESETS)}
    return sorted(sections, key=lambda section: order.get(section.preset, len(order))), left_out


def _plan(experiment: Experiment, preset: str, runs: Sequence[Run]) -> list[Run]:
    if preset not in experiment.PRESETS:
        return []
    return experiment.grid(preset, 1 + max(run.seed for run in runs), experiment.ALL_METHODS)


def _preset(run: Run, plans: dict[str, list[Run]]) -> str:
    """The preset whose grid has this run, or has another of as many steps for its method."""
    steps = run.settings.get("steps")
    for word, plan in plans.items():
        if run.key in {one.key for one in plan}:
            return word
    for word, plan in plans.items():
        if any(one.method == run.method and one.settings.get("steps") == steps for one in plan):
            return word
    return f"{steps} steps"


def _with_choice(plan: list[Run], preset: str, runs: Sequence[Run], root: Path) -> list[Run]:
    """The plan with the chosen λ, where all that it is chosen from is finished."""
    name = SELECTIONS.get(plan[0].data.partition(",")[0]) if plan else None
    if name is None or plan[0].experiment == name:
        return plan
    wished = load(name).grid(preset, 1, load(name).METHODS)
    if not {run.key for run in wished} <= {run.key for run in runs}:
        return plan
    return chosen(plan, best_of([read(run, root) for run in wished]))


def _kept(runs: Sequence[Run], keys: set[str]) -> list[Run]:
    slots: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        slots.setdefault((run.method, run.data, run.options.get("samples")), []).append(run)
    if any(
        run.key in keys for run in runs
    ):  # a method of the grid that was once run with another number of samples
        planned = {slot[:2] for slot, own in slots.items() if any(run.key in keys for run in own)}
        slots = {
            slot: own
            for slot, own in slots.items()
            if slot[:2] not in planned or any(run.key in keys for run in own)
        }
    kept = set()
    for own in slots.values():
        present = [run.key for run in own if run.key in keys]
        if not present:
            commonest = Counter(_options(run) for run in own).most_common(1)[0][0]
            present = [run.key for run in own if _options(run) == commonest]
        kept |= set(present)
    return sorted(
        (run for run in runs if run.key in kept),
        key=lambda run: (run.seed, method_order(run.method), run.data),
    )


def _options(run: Run) -> str:
    return repr((sorted(run.options.items()), sorted(run.settings.items())))


def _words(preset: str) -> str:
    return f"preset {preset}" if preset in PRESETS else preset


def _open(page: Page, sections: Sequence[Section]) -> None:
    page.text(
        "Made from finished runs, each kept with its configuration, its numbers and the commit that gave them. Presets are never mixed: "
        "paper trains as long as the paper does, quick a tenth of that or less, and says little about the paper."
    )
    rows: list[list[Cell]] = []
    for section in sections:
        runs = [result.run for result in section.results]
        seeds = ", ".join(str(seed) for seed in sorted({run.seed for run in runs}))
        rows.append([section.experiment, section.preset, len(runs), len({run.method for run in runs}), seeds])
    page.table(("experiment", "preset", "runs", "methods", "seeds"), rows, "What is on this page")


def _agreement(page: Page, preset: str, results: Sequence[Result]) -> None:
    findings = paper_comparison(results)
    if not findings:
        return
    page.heading(f"What agrees with the paper and what does not ({_words(preset)})")
    counts = Counter(finding.agrees for finding in findings)
    page.text(
        f"Of {len(findings)} statements {counts[True]} hold, {counts[False]} do not, and {counts[None]} have no runs yet. "
        "Numbers are means over seeds ± standard error. published and sound are two ways to attack: see the sections below."
    )
    rows = [(finding.claim, finding.agrees, finding.words) for finding in findings]
    page.table(("statement", "agrees", "numbers"), rows)
    page.csv_data(f"{preset.replace(' ', '-')}-agreement", ("statement", "agrees", "numbers"), rows)


def _close(
    page: Page,
    sections: Sequence[Section],
    bars: list[tuple[Section, Claim]],
    rest: Sequence[Run],
    left_out: Sequence[Run],
    root: Path,
    damaged: Sequence[str],
) -> None:
    results = [result for section in sections for result in section.results]
    if bars:
        page.heading("All claims with a bar")
        rows: list[list[Cell]] = [
            [s.experiment, s.preset, b.claim, b.value, f"{b.sense} {b.limit:g}", b.verdict] for s, b in bars
        ]
        page.table(("experiment", "preset", "claim", "measured", "required", "met"), rows)
    page.heading("Time")
    for word in dict.fromkeys(section.preset for section in sections):
        page.subheading(_words(word))
        own = [result for section in sections if section.preset == word for result in section.results]
        draw_times(own, page, f"{word.replace(' ', '-')}-times")
    page.provenance([result.record for result in results])
    failed = [state for state in survey(rest, root) if state.kind == "failed"]
    if failed:
        page.heading("Runs that failed")
        page.table(("run", "why"), [(str(state.run), state.words) for state in failed])
    if damaged:
        page.heading("Runs that could not be read")
        page.bullets(damaged)
    if left_out:
        page.heading("Runs that are not shown")
        page.text(
            "Finished, but with other options than the runs of the same method and data above; mixing them would mean nothing."
        )
        page.table(
            ("run", "steps", "key"), [(str(run), run.settings.get("steps"), run.key) for run in left_out]
        )
