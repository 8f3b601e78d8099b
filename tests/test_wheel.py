"""The built wheel works in an environment of its own, from another folder, with its data files."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("wheel")]


def run(*command: str | Path, cwd: Path) -> str:
    """What a command prints; it sees nothing of the environment that the tests run in."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COMPOUND"))
    }
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**environment, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the sources, without network and without touching them."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", folder, source, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def compound(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command in an environment that sees the installed dependencies, but no editable install."""
    folder = tmp_path_factory.mktemp("environment") / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=wheel.parent)
    python = folder / "bin" / "python"
    (packages,) = (folder / "lib").glob("python*/site-packages")
    # .pth files inside these folders are not read, so that the editable install stays out of sight
    dependencies = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "dependencies.pth").write_text("\n".join(dependencies) + "\n")
    options = ("--no-deps", "--no-index", "--disable-pip-version-check", "--quiet")
    run(sys.executable, "-m", "pip", "--python", python, "install", *options, wheel, cwd=folder)
    where = run(python, "-c", "import compound; print(compound.__file__)", cwd=folder)
    assert Path(where.strip()).is_relative_to(packages)
    return folder / "bin" / "compound"


def test_wheel_holds_the_package_its_data_and_the_licence(wheel: Path):
    names = zipfile.ZipFile(wheel).namelist()
    assert {"compound/py.typed", "compound/experiments/published.json"} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    modules = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "compound").rglob("*.py")}
    assert modules <= set(names)
    assert not [name for name in names if name.startswith(("tests/", "docs/", "examples/"))]


def test_installed_command_answers_help_from_another_folder(compound: Path, tmp_path: Path):
    assert "predict" in run(compound, "--help", cwd=tmp_path)
    assert "ml-cdn" in run(compound, "methods", cwd=tmp_path)


def test_installed_command_runs_the_demo(compound: Path, tmp_path: Path):
    assert "index.html" in run(compound, "demo", "--jobs", "1", cwd=tmp_path)
    assert (tmp_path / "report" / "index.html").read_text().startswith("<!doctype html>")
