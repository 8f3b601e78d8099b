"""Draws docs/architecture.svg: the rooms of src/compound, each above everything it imports.

Run `python docs/_ext/draw_architecture.py` after a change.
"""

from pathlib import Path

LAYERS: list[tuple[str, dict[str, str]]] = [
    ("command", {"cli": "arguments in, calls out"}),
    (
        "applications",
        {
            "ray": "clusters",
            "skpro": "its interface",
            "tables": "files: read, stream, explain",
            "bench": "speed and memory",
            "experiments": "the paper's runs and pages",
        },
    ),
    (
        "for users",
        {
            "network": "heads, after training",
            "estimators": "scikit-learn, calibration",
            "report": "HTML pages",
            "datasets": "catalogue, fetching",
        },
    ),
    ("training", {"train": "hold-out, loop, checkpoints"}),
    ("methods", {"models": "one file per method: loss and predictive; observation models; models on disk"}),
    (
        "layers",
        {
            "nn": "compound, matrix-Gaussian, flows",
            "ood": "distance from the training rows",
            "attacks": "FGSM, PGD",
        },
    ),
    (
        "probability",
        {
            "metrics": "NLL, CRPS, ECE, AUROC",
            "predictive": "the answer, its components",
            "families": "counts, times, tails",
            "distributions": "MatrixNormal, mixtures, KL",
        },
    ),
    ("operations", {"ops": "one file per operation: reference formula, compiled loop, gradient, dispatcher"}),
    (
        "foundations",
        {
            "types": "Task, Batch",
            "random": "named streams",
            "io": "safe files",
            "compat": "private torch",
            "precision": "autocast",
        },
    ),
]
CAPTION = "Imports point downwards, or to the right within a layer; the table: tests/test_imports.py"
COLOURS = ("#f4e3d3", "#f8ecd9", "#f6f1d8", "#e6f0d8", "#d9eddc", "#d8ecec", "#dbe7f3", "#e2e2f2", "#ece4f0")
WIDTH, LEFT, TOP, HEIGHT, GAP = 900, 130, 16, 52, 11


def draw() -> str:
    total = TOP + len(LAYERS) * (HEIGHT + GAP) + 28
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {total}"'
        f' width="{WIDTH}" height="{total}" font-family="Helvetica, Arial, sans-serif">',
        f'<rect width="{WIDTH}" height="{total}" fill="white"/>',
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" '
        'markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 L10 5 L0 10 z" fill="#555"/></marker></defs>',
    ]
    for row, (label, rooms) in enumerate(LAYERS):
        y = TOP + row * (HEIGHT + GAP)
        parts.append(text(LEFT - 14, y + HEIGHT / 2 + 4, label, 12, "#555", "end"))
        width = (WIDTH - LEFT - 16 - GAP * (len(rooms) - 1)) / len(rooms)
        for column, (name, what) in enumerate(rooms.items()):
            x = LEFT + column * (width + GAP)
            box = f'x="{x:.1f}" y="{y}" width="{width:.1f}" height="{HEIGHT}" rx="6"'
            parts.append(f'<rect {box} fill="{COLOURS[row]}" stroke="#8a8a8a"/>')
            parts.append(text(x + width / 2, y + 22, name, 15, "#111", "middle", "600"))
            parts.append(text(x + width / 2, y + 41, what, 11, "#333"))
    bottom = TOP + len(LAYERS) * (HEIGHT + GAP)
    parts.append(
        f'<line x1="22" y1="{TOP + 8}" x2="22" y2="{bottom - 16}" stroke="#555" marker-end="url(#tip)"/>'
    )
    parts.append(text(LEFT, bottom + 12, CAPTION, 12, "#555", "start"))
    return "\n".join([*parts, "</svg>", ""])


def text(
    x: float, y: float, label: str, size: int, fill: str, anchor: str = "middle", weight: str = "400"
) -> str:
    style = f'font-size="{size}" fill="{fill}" text-anchor="{anchor}" font-weight="{weight}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{label}</text>'


if __name__ == "__main__":
    Path(__file__).parents[1].joinpath("architecture.svg").write_text(draw())
