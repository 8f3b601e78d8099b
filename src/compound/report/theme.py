"""Colours, style and the light-or-dark switch that all pages share; nothing is loaded from elsewhere."""

LIGHT = """
  --ink: #1c2330; --soft: #5a6474; --line: #d9dee6; --paper: #ffffff; --panel: #f5f7fa; --link: #1f5c99;
  --blue: #1f5c99; --sky: #9db4d6; --red: #c1272d; --amber: #b36b00; --green: #17692b;
  --component: #4477aa; --mixing: #66ccee; --posterior: #ee6677; color-scheme: light;
"""
DARK = """
  --ink: #e3e8f0; --soft: #9aa6b8; --line: #333c4a; --paper: #14181f; --panel: #1c222c; --link: #8fbdf0;
  --blue: #7fb2e5; --sky: #3f5c85; --red: #ff8078; --amber: #f0b04f; --green: #6fd08a;
  --component: #6f9fd0; --mixing: #66ccee; --posterior: #ee6677; color-scheme: dark;
"""
# Figures are drawn dark on transparent; in the dark their lightness is inverted, and their hues are kept.
STYLE = f"""
:root {{{LIGHT}}}
@media (prefers-color-scheme: dark) {{ :root:not([data-theme=light]) {{{DARK}}}
  :root:not([data-theme=light]) figure img {{ filter: invert(1) hue-rotate(180deg); }} }}
:root[data-theme=dark] {{{DARK}}}
:root[data-theme=dark] figure img {{ filter: invert(1) hue-rotate(180deg); }}
* {{ box-sizing: border-box; }}
body {{ font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); }}
body {{ max-width: 68rem; margin: 1.5rem auto; padding: 0 1rem; overflow-wrap: anywhere; }}
table {{ overflow-wrap: normal; }}
h1, h2 {{ line-height: 1.2; }} h1 {{ margin: .5rem 3rem 1rem 0; }} h3 {{ margin-top: 2rem; }}
h2 {{ margin-top: 2.5rem; border-top: 1px solid var(--line); padding-top: 1rem; }}
a {{ color: var(--link); }}
figure {{ margin: 1.5rem 0; }} figure img {{ max-width: 100%; height: auto; }}
figcaption, caption {{ color: var(--soft); text-align: left; }}
.figures {{ display: flex; flex-wrap: wrap; gap: 0 1rem; }}
.figures figure {{ margin: .5rem 0; max-width: 100%; flex: 0 1 22rem; }}
.scroll {{ overflow-x: auto; max-width: 100%; }} .tall {{ max-height: 32rem; overflow-y: auto; }}
.tall thead th {{ position: sticky; top: 0; background: var(--paper); }}
table {{ border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }}
caption {{ margin-bottom: .4rem; }}
th, td {{ padding: .25rem .8rem; border-bottom: 1px solid var(--line); text-align: right; }}
th:first-child, td:first-child, .text {{ text-align: left; }}
td {{ white-space: nowrap; max-width: 24rem; overflow: hidden; text-overflow: ellipsis; }}
td.long {{ white-space: normal; min-width: 14rem; }} .figures + p.data {{ margin-top: .3rem; }}
table.bars {{ width: 100%; table-layout: fixed; }} table.bars td:first-child {{ white-space: nowrap; }}
td.bar {{ text-align: left; color: var(--soft); font-size: .85rem; }}
td.bar span {{ display: inline-block; height: .8rem; background: var(--blue); border-radius: .2rem;
  margin-right: .4rem; vertical-align: middle; }}
p.data {{ margin-top: -1rem; font-size: .85rem; color: var(--soft); }}
p.lead {{ font-size: 1.1rem; background: var(--panel); padding: .8rem 1rem; border-radius: .4rem;
  border-left: .3rem solid var(--blue); }}
.yes {{ color: var(--green); }} .no {{ color: var(--red); font-weight: 600; }}
button.theme {{ float: right; font: inherit; line-height: 1; padding: .4rem .6rem; cursor: pointer;
  color: var(--ink); background: var(--panel); border: 1px solid var(--line); border-radius: .4rem; }}
@media print {{ button.theme {{ display: none; }} .tall {{ max-height: none; }} }}
"""
# A browser loads nothing from elsewhere, whatever a page holds.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
SWITCH = '<button type="button" class="theme" aria-label="Light or dark">◐</button>'
SCRIPT = """
(() => {
  const root = document.documentElement;
  const wanted = matchMedia("(prefers-color-scheme: dark)");
  document.querySelector("button.theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : wanted.matches;
    root.dataset.theme = dark ? "light" : "dark";
  });
})();
"""


def document(title: str, body: str, style: str = "", script: str = "") -> str:
    """A whole page; `title` and `body` are HTML, escaped already.

    `style` and `script` are added to those that all pages share. Bytes of file names that are not UTF-8 are
    escaped.
    """
    page = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{title}</title>\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<style>{STYLE}{style}</style></head>\n<body>\n{SWITCH}\n{body}\n"
        f"<script>{SCRIPT}{script}</script>\n</body></html>\n"
    )
    return page.encode(errors="backslashreplace").decode()
