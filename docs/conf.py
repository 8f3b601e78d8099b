"""Settings of the documentation site: `make docs` builds it, with warnings as errors and without network."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent / "src")]

import compound  # noqa: E402

project = "compound"
author = "The compound developers"
copyright = author
release = version = compound.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.viewcode",
    "numpydoc",
    "sphinx_copybutton",
    "docstrings",
    "generated_pages",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_build", "_ext", "_templates", "generated/included"]
templates_path = ["_templates"]
nitpicky = False
default_role = "literal"  # `name` in a docstring is code, as in Markdown
highlight_language = "text"  # equations stand in plain blocks

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
myst_links_external_new_tab = False

autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
autodoc_inherit_docstrings = False  # those of torch and scikit-learn are theirs
autodoc_member_order = "bysource"
autosummary_generate = True
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_exclude = ".linenos, .gp, .go"

html_theme = "furo"
html_title = f"compound {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1f5c99", "color-brand-content": "#1f5c99"},
    "dark_css_variables": {"color-brand-primary": "#7fb2e5", "color-brand-content": "#7fb2e5"},
}
