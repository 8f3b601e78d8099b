"""Imports point one way, and the door is light: no torch before it is used."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import compound

SOURCE = Path(compound.__file__).parent
BASE = {"types", "random", "io"}  # everybody's
MATHS = {"distributions", "predictive", "metrics"}
TABLE = {  # room: what it may import
    "__init__": set(),
    "compat": set(),  # private functions of torch
    "precision": set(),
    "io": set(),
    "types": set(),
    "random": set(),
    "ops": {"compat", "precision", "random"},
    "distributions": {"ops"},
    "families": {"distributions"},
    "predictive": {"distributions", "families", "ops"},
    "metrics": {"predictive"},
    "attacks": {"types", "distributions"},
    "nn": {"random", "compat", "precision", "distributions", "ops"},
    "ood": {"ops", "types"},
    "models": {
        *BASE,
        "compat",
        "precision",
        "distributions",
        "families",
        "predictive",
        "attacks",
        "ops",
        "nn",
        "ood",
    },
    "models.files": {*BASE, "models", "nn", "ood", "predictive"},  # models on disk
    "train": {*BASE, "compat", "models.base", "models.files"},
    "datasets": BASE,
    "report": {"io"},
    "estimators": {*BASE, *MATHS, "compat", "ops", "nn", "ood", "models", "models.files", "train"},
    "network": {*BASE, "compat", "predictive", "ops", "nn", "ood", "models", "train", "estimators"},
    "skpro": {"models", "predictive", "estimators"},
    "tables": {*BASE, "metrics", "ood", "models", "train", "estimators", "report"},
    "experiments": {
        *BASE,
        *MATHS,
        "attacks",
        "ops",
        "nn",
        "ood",
        "models",
        "models.files",
        "train",
        "datasets",
        "estimators",
        "network",
        "report",
    },
    "ray": {*BASE, "train", "estimators", "experiments", "tables"},
    "bench": {*BASE, "nn", "ood", "models", "train", "estimators", "report", "experiments"},
    "cli": {
        "io",
        "models",
        "models.files",
        "train",
        "estimators",
        "tables",
        "report",
        "datasets",
        "experiments",
        "ray",
        "bench",
    },
}


def room(module: str) -> str:
    """compound.models.base.Model -> models.base where the table names that, else models."""
    words = module.split(".")[1:]
    names = {name for allowed in TABLE.values() for name in allowed} | set(TABLE)
    long = ".".join(words[:2])
    return long if long in names else words[0] if words else "__init__"


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports in full"
            found |= {
                f"{node.module}.{alias.name}" if node.module.count(".") == 0 else node.module
                for alias in node.names
            }
    return {
        name
        for name in found
        if name.split(".")[0] == "compound" and name.split(".")[-1] not in ("__version__", "compound")
    }


def test_rooms_import_only_what_the_table_allows():
    wrong = []
    for path in SOURCE.rglob("*.py"):
        module = ".".join(["compound", *path.relative_to(SOURCE).with_suffix("").parts]).removesuffix(
            ".__init__"
        )
        here = "__init__" if module == "compound" else room(module)
        if here in ("__init__", "__main__"):
            continue  # the public list names every room, lazily
        home = "models" if here == "models.base" else here
        allowed = {home, here, *TABLE[home]} | (
            {"models.base"} if "models" in {home, *TABLE[home]} else set()
        )
        wrong += [f"{module} imports {name}" for name in imported(path) if room(name) not in allowed]
    assert not wrong, "\n".join(wrong)


def test_every_public_name_resolves_to_its_home():
    for name in compound.__all__:
        assert getattr(compound, name).__name__ == name
    with pytest.raises(AttributeError, match="nonsense"):
        compound.nonsense  # noqa: B018


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_door_and_help_leave_torch_alone():
    heavy = (
        "print([name for name in ('torch', 'numpy', 'numba', 'matplotlib', 'pandas') if name in sys.modules])"
    )
    assert python(f"import sys, compound; {heavy}").strip() == "[]"
    call = "try: compound.cli.app.main(['--help'])\nexcept SystemExit: pass"
    asked = f"import sys, compound.cli.app\n{call}\n{heavy}"
    assert python(asked).strip().splitlines()[-1] == "[]"


def test_help_comes_within_half_a_second():
    """Of a processor's time, whatever else the machine does."""
    used = []
    for _ in range(3):
        before = os.times()
        python("import compound.cli.app\ncompound.cli.app.main(['--help'])")
        after = os.times()
        used.append(
            after.children_user - before.children_user + after.children_system - before.children_system
        )
    assert min(used) < 0.5
