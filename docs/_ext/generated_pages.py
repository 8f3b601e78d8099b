"""Pages made from the code: methods from docstrings, the gallery from examples/, the command's help.

They go to docs/generated/, which is not committed. Pictures of the gallery are made by running the examples,
again when an example or the library changes. `-D gallery_run=0` leaves out pictures that are not there.
"""

import ast
import hashlib
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
GENERATED = DOCS / "generated"
EXAMPLES = (
    "regression_band",
    "compare_methods",
    "conformal_coverage",
    "calibration_curve",
    "distribution_shift",
    "ood_alarm",
    "explain_row",
    "own_training_loop",
    "head_on_cnn",
    "after_training",
    "frozen_features",
    "lightning_module",
    "trainer_loss",
    "export_head",
    "convert_network",
    "compound_convolution",
    "compound_recurrence",
    "forecast_by_reduction",
)

REPOSITORY_PAGES = {  # of the site: where their text stands in the repository
    "architecture": "ARCHITECTURE.md",
    "contributing": "CONTRIBUTING.md",
    "changelog": "CHANGELOG.md",
    "results": "results/README.md",
    "truth": "results/truth.md",
    "posthoc": "results/posthoc.md",
    "table-1": "results/table-1.md",
    "claims": "results/claims.md",
    "near": "results/near.md",
    "images": "results/images.md",
    "sequences": "results/sequences.md",
    "measured-layers": "results/layers.md",
    "speed-fit": "results/speed-fit.md",
    "measured-scale": "results/scale.md",
    "measured-ray": "results/ray.md",
    "measured-targets": "results/targets.md",
    "pbp": "results/pbp.md",
    "measured-tables": "results/tables.md",
    "tables-trials": "results/tables-trials.md",
    "ood-tables": "results/ood-tables.md",
    "speed-tables": "results/speed-tables.md",
}
LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)")


def setup(app: Any) -> dict[str, bool]:
    app.add_config_value("gallery_run", True, "env", types=(bool, str, int))
    app.connect("config-inited", lambda app, config: generate(run=config.gallery_run in (True, "1", 1)))
    return {"parallel_read_safe": True}


def generate(run: bool = True) -> None:
    write("included/methods.md", method_index())
    for page, source in REPOSITORY_PAGES.items():
        write(f"included/{page}.md", relinked(ROOT / source))
    for name in method_names():
        write(f"methods/{name}.md", method_page(name))
    write("commands.md", command_page())
    if run:
        run_examples()
    write("included/gallery.md", "\n".join(example_section(name) for name in EXAMPLES))


def write(name: str, text: str) -> None:
    path = GENERATED / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_file() or path.read_text() != text:
        path.write_text(text)


def relinked(source: Path) -> str:
    """A page of the repository with its links as seen from docs/."""
    pages = {ROOT / path: f"{page}.md" for page, path in REPOSITORY_PAGES.items()}

    def replace(link: re.Match[str]) -> str:
        target = (source.parent / link[1]).resolve()
        return f"]({pages.get(target, os.path.relpath(target, DOCS))}"

    return LINK.sub(replace, source.read_text())


def method_names() -> list[str]:
    from compound.models import METHODS

    return list(METHODS)


def method_index() -> str:
    """For methods.md: the table, and the pages for the sidebar."""
    from compound.models.listing import entries

    lines = ["| name | method | source | components of uncertainty |", "| --- | --- | --- | --- |"]
    for name, summary, components, source, _ in entries():
        lines.append(
            f"| [`{name}`](generated/methods/{name}.md) | {summary} | {source} | {', '.join(components)} |"
        )
    pages = [f"{name} <generated/methods/{name}>" for name in method_names()]
    return "\n".join([*lines, "", "```{toctree}", ":hidden:", "", *pages, "```", ""])


def method_page(name: str) -> str:
    from compound.models import METHODS
    from compound.models.listing import entry

    kind = METHODS[name]
    docstring = (
        ast.get_docstring(ast.parse(Path(sys.modules[kind.__module__].__file__ or "").read_text())) or ""
    )
    _, summary, components, source, options = entry(name)
    rows = [f"| `{option}` | `{default}` | {cell(comment)} |" for option, default, comment in options]
    return "\n".join([
        f"# {name}",
        "",
        summary,
        "",
        f"Source: {source}. Components of uncertainty: {', '.join(components)}. "
        f"Class: `{kind.__module__}.{kind.__name__}`.",
        "",
        "## Definition",
        "",
        docstring,
        "",
        "## Options",
        "",
        f'`Method("{name}", ...)` takes them by name; on the command line `--option NAME=VALUE`. '
        "`None`: chosen by the task.",
        "",
        "| option | default | meaning |",
        "| --- | --- | --- |",
        *rows,
        "",
        "## Use",
        "",
        "```python",
        "from compound import CompoundRegressor, Task, build",
        "",
        f'CompoundRegressor("{name}")  # scikit-learn',
        f'build("{name}", inputs=3, task=Task("regression", 1))  # PyTorch',
        "```",
        "",
    ])  # fmt: skip


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def command_page() -> str:
    """Every command's own help."""
    import click

    from compound.cli.app import main

    context = click.Context(main, info_name="compound", max_content_width=100)
    parts = ["# Command line", "", "```text", main.get_help(context), "```", ""]
    for name, command in main.commands.items():
        nested = list(command.commands.items()) if isinstance(command, click.Group) else []
        for title, each in [(name, command), *((f"{name} {sub}", each) for sub, each in nested)]:
            inner = click.Context(each, info_name=f"compound {title}", max_content_width=100)
            parts += [f"## {title}", "", "```text", each.get_help(inner), "```", ""]
    return "\n".join(parts)


def example_section(name: str) -> str:
    """Heading, text and picture of an example, its code below them."""
    source = (ROOT / "examples" / f"{name}.py").read_text()
    title, _, text = (ast.get_docstring(ast.parse(source)) or "").partition("\n\n")
    code = source.split('"""\n', 1)[1].strip()
    picture = (
        [f"![{title}](generated/gallery/{name}.png)", ""]
        if (GENERATED / "gallery" / f"{name}.png").is_file()
        else []
    )
    return "\n".join([
        f"## {title.removesuffix('.')}",
        "",
        text,
        "",
        *picture,
        f"<details><summary>Code: <code>examples/{name}.py</code></summary>",
        "",
        "```python",
        code,
        "```",
        "",
        "</details>",
        "",
    ])  # fmt: skip


def run_examples() -> None:
    """Pictures of all examples that changed, two at a time."""
    folder = GENERATED / "gallery"
    folder.mkdir(parents=True, exist_ok=True)
    library = b"".join(path.read_bytes() for path in sorted((ROOT / "src").rglob("*.py")))
    style = (ROOT / "examples" / "gallery.mplstyle").read_bytes()

    def run(name: str) -> None:
        script = ROOT / "examples" / f"{name}.py"
        digest = hashlib.sha256(script.read_bytes() + style + library).hexdigest()
        stamp = folder / f"{name}.sha256"
        if stamp.is_file() and stamp.read_text() == digest:
            return
        environment = {
            **os.environ,
            "MPLBACKEND": "agg",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT / "src"),
        }
        subprocess.run([sys.executable, "-W", "error", str(script)], cwd=folder, env=environment, check=True)
        stamp.write_text(digest)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, EXAMPLES))
