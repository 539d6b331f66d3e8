"""Hooks of mkdocs: what the site has besides the pages of `docs/`.

- The notebooks of `examples/`, with the output that is stored in them, as pages below `gallery/`.
- The changelog, as it is in the repository.
- A page below `api/` for every public name.
- Tables of settings, from the dataclasses of `swivel.config`, where a page says `<!-- settings: NAME -->`.
- Formulas between dollar signs, drawn by matplotlib, so that the site needs no script and no network for them.
- Flags in sentences, marked so that no line ends after their hyphens.
"""

from __future__ import annotations

import html
import json
import re
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from matplotlib.font_manager import FontProperties
from matplotlib.path import Path as Outline
from matplotlib.textpath import TextPath, TextToPath
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "src"))

import swivel  # noqa: E402
from swivel import config as settings  # noqa: E402

SETTINGS = re.compile(r"<!-- settings: (\w+) -->")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.S)
INLINE_CODE = re.compile(r"<code>[^<\n]*</code>")
FLAG = re.compile(r"(?<![\w-])--?[\w-]+")
EM = 10.0  # size in which formulas are drawn; the page scales them to the size of its text
COMMANDS = {Outline.MOVETO: "M", Outline.LINETO: "L", Outline.CURVE3: "Q", Outline.CURVE4: "C", Outline.CLOSEPOLY: "Z"}


def on_config(config: MkDocsConfig) -> None:
    """Link every page to its source, where the repository has a public address."""
    config.edit_uri = "edit/main/docs/" if config.repo_url else None


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made of files outside of `docs/`."""
    for notebook in sorted((ROOT / "examples").glob("*.ipynb")):
        files.append(File.generated(config, f"gallery/{notebook.stem}.md", content=draw_notebook(notebook)))
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "changelog.md", content=changelog.replace("](docs/", "](")))
    for name in set(swivel.__all__) - {"__version__"}:
        page = f"---\ntitle: {name}\n---\n\n::: swivel.{name}\n"
        files.append(File.generated(config, f"api/{name}.md", content=page))
    return files


def on_page_markdown(text: str, **_: Any) -> str:
    """Write the tables of settings."""
    return SETTINGS.sub(lambda found: list_settings(getattr(settings, found[1])), text)


def on_page_content(text: str, **_: Any) -> str:
    """Draw the formulas of a page, and mark its flags."""
    text = INLINE_CODE.sub(lambda found: FLAG.sub(r'<span class="flag">\g<0></span>', found[0]), text)
    return FORMULA.sub(lambda found: draw_formula(html.unescape(found[2]), is_inline=found[1] == "span"), text)


# Settings


def list_settings(config: Any) -> str:
    """Return a table of the fields of a configuration: name, default, meaning."""
    rows = [f"| `{field.name}` | `{field.default!r}` | {field.metadata['help']} |" for field in fields(config)]
    return "\n".join(["| field | default | |", "| --- | --- | --- |", *rows])


# Notebooks


def draw_notebook(path: Path) -> str:
    """Return a notebook as Markdown: its text, its code, and the stored output."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    parts = []
    for cell in cells:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += [draw_output(output) for output in cell.get("outputs", [])]

    title, _, rest = "\n\n".join(parts).partition("\n")
    return f"{title}\n\nThis page is the notebook `examples/{path.name}` of the repository.\n{rest}\n"


def draw_output(output: dict[str, Any]) -> str:
    """Return the richest form of an output that a page can show."""
    data = {kind: "".join(text) for kind, text in output.get("data", {}).items()}
    if "image/png" in data:
        return f'<p><img alt="Output" src="data:image/png;base64,{data["image/png"].strip()}"></p>'
    if "text/html" in data:
        return re.sub(r"<style.*?</style>|\s(?:class|border|style)=\"[^\"]*\"|\n\s*", "", data["text/html"], flags=re.S)
    text = data.get("text/plain") or "".join(output.get("text", []))
    if not text:  # a progress bar that was removed at the end
        return ""
    return f"```text\n{text.rstrip()}\n```"


# Formulas


def draw_formula(formula: str, is_inline: bool) -> str:
    """Return a formula of TeX as a drawing with the size and the color of the text around it."""
    if is_inline:
        return draw_line(formula)
    lines = "".join(f"<div>{draw_line(line)}</div>" for line in formula.split(r"\\"))
    return f'<div class="formulas">{lines}</div>'


def draw_line(formula: str) -> str:
    formula = " ".join(formula.split())
    font = FontProperties(size=EM, math_fontfamily="cm")
    width, height, depth = TextToPath().get_text_width_height_descent(f"${formula}$", font, ismath=True)

    steps = []
    for curve, code in TextPath((0, 0), f"${formula}$", prop=font).iter_segments(simplify=False, curves=True):
        places = " ".join(f"{value:.2f}" for value in (curve * ([1, -1] * (len(curve) // 2))))
        steps.append(COMMANDS[code] + ("" if code == Outline.CLOSEPOLY else places))
    box = f"-0.5 {depth - height - 0.5:.2f} {width + 1:.2f} {height + 1:.2f}"
    size = f"width: {(width + 1) / EM:.3f}em; vertical-align: {-(depth + 0.5) / EM:.3f}em"
    label = html.escape(formula, quote=True)
    return (
        f'<svg class="formula" role="img" aria-label="{label}" viewBox="{box}" style="{size}">'
        f'<path d="{"".join(steps)}"/></svg>'
    )
