"""One page from all finished runs in a folder: every experiment, and which statements of the paper hold."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from compound.experiments import MODULES, load
from compound.experiments.base import PRESETS, Experiment
from compound.experiments.identity import Run
from compound.experiments.ood.select import SELECTIONS, best_lambdas, with_best_lambdas
from compound.experiments.paper_comparison import paper_comparison
from compound.experiments.run_files import error_line
from compound.experiments.runs import Result, is_finished, read, split_damaged
from compound.experiments.status import find_runs, run_states, unreadable_configs
from compound.experiments.times import draw_times
from compound.report.page import Cell, Claim, Page
from compound.report.plot_styles import method_order

ORDER = PRESETS[::-1]  # paper first


class Overview(NamedTuple):
    """What `overview` put on its page."""

    runs: int  # how many are shown
    errors: list[str]  # runs that could not be read and sections that could not be drawn, with reasons


class Section(NamedTuple):
    """Results of one experiment with one preset, which are shown in the same tables."""

    experiment: str
    preset: str  # or, if the runs have the steps of no preset, such as "77 steps"
    results: list[Result]

    @property
    def preset_title(self) -> str:
        return f"preset {self.preset}" if self.preset in PRESETS else self.preset

    @property
    def file_prefix(self) -> str:
        """The start of the names of its files."""
        return f"{self.preset.replace(' ', '-')}-"


def overview(root: Path, out: Path, preset: str = "") -> Overview:
    """Write out/index.html and its files, from the finished runs in `root`.

    An empty preset means all presets, each in sections of its own.
    """
    if preset and preset not in PRESETS:
        raise ValueError(f"preset is {preset!r}: choose {' or '.join(ORDER)}")
    runs = find_runs(root)
    finished = [run for run in runs if is_finished(run, root) and run.experiment in MODULES]
    intact, damaged = split_damaged(finished, root)
    sections, left_out = make_sections(intact, root)
    sections = [section for section in sections if preset in ("", section.preset)]
    if not sections:
        count = f", and {len(damaged)} damaged" if damaged else ""
        kind = f" of preset {preset}" if preset else ""
        raise ValueError(f"{root} holds no finished run{kind}{count}: compound status shows what it holds")
    configs = unreadable_configs(root)
    unreadable = [
        *map(str, damaged),
        *(f"{path} is damaged: what its results belong to is lost" for path in configs),
    ]
    page = Page("Compound density networks: the experiments of the paper, reproduced")
    _draw_contents(page, sections)
    for group in _by_preset(sections):
        _draw_comparison(page, group)
    claims, errors = _draw_sections(page, sections)
    if claims:
        page.heading("All claims with a limit")
        page.table(("experiment", "preset", "claim", "measured", "required", "met"), claims)
    page.heading("Time")
    for group in _by_preset(sections):
        page.subheading(group[0].preset_title)
        draw_times(_results(group), page, f"{group[0].file_prefix}times")
    page.provenance([result.provenance for result in _results(sections)])
    unfinished = [run for run in runs if not is_finished(run, root)]
    _list_missing_runs(page, unfinished, left_out, root, unreadable)
    page.write(out / "index.html")
    return Overview(len(_results(sections)), [*unreadable, *errors])


def make_sections(runs: Sequence[Run], root: Path) -> tuple[list[Section], list[Run]]:
    """Sections of finished runs, preset paper first, and the runs that are in none.

    Of runs that differ only in options, a section has those that the experiment would plan today (with the
    selected λ, where one was selected); if there are none, those with the most common options.
    """
    sections = []
    left_out = []
    for name in MODULES:
        of_experiment = [run for run in runs if run.experiment == name]
        if not of_experiment:
            continue
        plans = {preset: _current_plan(load(name), preset, of_experiment) for preset in ORDER}
        groups: dict[str, list[Run]] = {}
        for run in of_experiment:
            groups.setdefault(_preset_of(run, plans), []).append(run)
        for preset in sorted(groups):
            planned = _with_selected_lambda(plans.get(preset, []), preset, runs, root)
            shown = _runs_to_show(groups[preset], {run.key for run in planned})
            sections.append(Section(name, preset, [read(run, root) for run in shown]))
            left_out += [run for run in groups[preset] if run not in shown]
    rank = {preset: number for number, preset in enumerate(ORDER)}
    return sorted(sections, key=lambda section: rank.get(section.preset, len(rank))), left_out


def _current_plan(experiment: Experiment, preset: str, runs: Sequence[Run]) -> list[Run]:
    """The runs that the experiment plans today, with all its methods and as many seeds as `runs` have."""
    return experiment.grid(preset, 1 + max(run.seed for run in runs), experiment.all_methods)


def _preset_of(run: Run, plans: dict[str, list[Run]]) -> str:
    """The preset that plans this run, or a run of its method with as many steps; else such as "77 steps"."""
    steps = run.settings.get("steps")
    for preset, plan in plans.items():
        if run.key in {planned.key for planned in plan}:
            return preset
    for preset, plan in plans.items():
        if any(planned.method == run.method and planned.settings.get("steps") == steps for planned in plan):
            return preset
    return f"{steps} steps"


def _with_selected_lambda(plan: list[Run], preset: str, runs: Sequence[Run], root: Path) -> list[Run]:
    """The plan with the selected λ, if all candidates of the selection are among the finished `runs`."""
    name = SELECTIONS.get(plan[0].data) if plan else None
    if name is None or plan[0].experiment == name:
        return plan
    candidates = load(name).grid(preset, 1, load(name).methods)
    if not {run.key for run in candidates} <= {run.key for run in runs}:
        return plan
    return with_best_lambdas(plan, best_lambdas([read(run, root) for run in candidates]))


def _runs_to_show(runs: Sequence[Run], planned: set[str]) -> list[Run]:
    """The runs of one preset to show: one set of options for each method, data and number of samples.

    `planned` has the keys of the runs that the experiment plans today; these are preferred.
    """
    slots: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        slots.setdefault((run.method, run.data_label, run.options.get("samples")), []).append(run)
    in_grid = {slot: [run for run in group if run.key in planned] for slot, group in slots.items()}
    # a planned method may have earlier runs with other numbers of samples: these are not shown
    planned_methods = {slot[:2] for slot, group in in_grid.items() if group}
    shown: set[str] = set()
    for slot, group in slots.items():
        if in_grid[slot]:
            shown |= {run.key for run in in_grid[slot]}
        elif slot[:2] not in planned_methods:
            most_common, _ = Counter(map(_options_text, group)).most_common(1)[0]
            shown |= {run.key for run in group if _options_text(run) == most_common}
    order = sorted(runs, key=lambda run: (run.seed, method_order(run.method), run.data_label))
    return [run for run in order if run.key in shown]


def _options_text(run: Run) -> str:
    """Options and settings as text, equal for equal ones."""
    return repr((sorted(run.options.items()), sorted(run.settings.items())))


def _by_preset(sections: Sequence[Section]) -> list[list[Section]]:
    presets = dict.fromkeys(section.preset for section in sections)
    return [[section for section in sections if section.preset == preset] for preset in presets]


def _results(sections: Sequence[Section]) -> list[Result]:
    return [result for section in sections for result in section.results]


def _draw_contents(page: Page, sections: Sequence[Section]) -> None:
    """Add the introduction, and a table of the sections."""
    page.text(
        "Made from finished runs, each kept with its configuration, its numbers and the commit that "
        "computed them. Presets are never mixed: paper trains as long as the paper does, quick a tenth of "
        "that or less, and says little about the paper."
    )
    rows: list[list[Cell]] = []
    for section in sections:
        runs = [result.run for result in section.results]
        seeds = ", ".join(str(seed) for seed in sorted({run.seed for run in runs}))
        rows.append([section.experiment, section.preset, len(runs), len({run.method for run in runs}), seeds])
    page.table(("experiment", "preset", "runs", "methods", "seeds"), rows, "What is on this page")


def _draw_comparison(page: Page, sections: Sequence[Section]) -> None:
    """Add the table of which statements of the paper hold, for sections of one preset."""
    findings = paper_comparison(_results(sections))
    if not findings:
        return
    page.heading(f"What agrees with the paper and what does not ({sections[0].preset_title})")
    counts = Counter(finding.agrees for finding in findings)
    page.text(
        f"Of {len(findings)} statements {counts[True]} hold, {counts[False]} do not, and {counts[None]} have "
        "no runs yet. Numbers are means over seeds ± standard error. published and sound are two protocols "
        "of attack: see the sections below."
    )
    columns = ("statement", "agrees", "numbers")
    page.table(columns, findings)
    page.csv_data(f"{sections[0].file_prefix}agreement", columns, findings)


def _draw_sections(page: Page, sections: Sequence[Section]) -> tuple[list[list[Cell]], list[str]]:
    """Add the figures and tables of every section.

    Returns table rows of all claims, and an error message for each section that could not be drawn.
    """
    claims: list[list[Cell]] = []
    errors = []
    for section in sections:
        name, preset, results = section
        page.heading(f"{load(name).title} ({section.preset_title})")
        page.prefix = section.file_prefix
        try:
            claims += [[name, preset, *_claim_cells(claim)] for claim in load(name).fill_page(results, page)]
        except Exception as error:
            errors.append(f"{name} ({preset}) could not be drawn: {error_line(error)}")
            page.text(errors[-1])
    page.prefix = ""
    return claims, errors


def _claim_cells(claim: Claim) -> list[Cell]:
    return [claim.claim, claim.value, f"{claim.sense} {claim.limit:g}", claim.verdict]


def _list_missing_runs(
    page: Page, unfinished: Sequence[Run], left_out: Sequence[Run], root: Path, unreadable: Sequence[str]
) -> None:
    """List the runs without results on the page: failed, unreadable (error messages), or left out."""
    failed = [state for state in run_states(unfinished, root) if state.kind == "failed"]
    if failed:
        page.heading("Runs that failed")
        page.table(("run", "reason"), [(str(state.run), state.detail) for state in failed])
    if unreadable:
        page.heading("Runs that could not be read")
        page.bullets(unreadable)
    if left_out:
        page.heading("Runs that are not shown")
        page.text("Finished, but with other options than the runs of the same method and data above.")
        rows = [(str(run), run.settings.get("steps"), run.key) for run in left_out]
        page.table(("run", "steps", "key"), rows)
