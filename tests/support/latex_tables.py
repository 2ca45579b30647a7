"""A small reader of the LaTeX of tables, which knows nothing but what they are made of."""

import re

from sortal.research.benchmark.typesetting import LATEX

COMMANDS = {tex: text for text, tex in LATEX.items()}
TOKEN = re.compile(r"\$[^$]+\$|\\[a-z]+\{\}|\\.|\{[\[\]*]\}|\{\}|--|[^\\{}$&%#_~^\[\]*<>|]")


def read_text(tex: str) -> str:
    """Read what LaTeX would print; every character must be part of something known."""
    found, at = "", 0
    while at < len(tex):
        token = TOKEN.match(tex, at)
        assert token is not None, f"{tex[at:]!r} means something else"
        found += "" if token[0] == "{}" else COMMANDS.get(token[0], token[0])
        at = token.end()
    return found


def read_latex(tex: str) -> tuple[str, str, list[list[str]], str]:
    """Return the title, the columns, the rows and the notes of a table."""
    whole = re.fullmatch(
        r"% \\usepackage\{booktabs,graphicx\}\n\\begin\{table\}\n  \\centering\n  \\caption\{(.*)\}\n"
        r"  \\resizebox\{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi\}\{!\}\{"
        r"\\begin\{tabular\}\{([lr]+)\}\n    \\toprule\n(.*)    \\bottomrule\n  \\end\{tabular\}\}\n"
        r"  \\par\\smallskip\{\\footnotesize (.*)\\par\}\n\\end\{table\}\n",
        tex,
        re.DOTALL,
    )
    assert whole is not None
    title, columns, body, notes = whole.groups()
    header, _, rows = body.partition("    \\midrule\n")
    lines = [line.strip().removesuffix(r" \\") for line in (header + rows).splitlines()]
    cells = [[read_text(cell) for cell in re.split(r"(?<!\\) & ", line)] for line in lines]
    assert {len(row) for row in cells} == {len(columns)}
    return read_text(title), columns, cells, read_text(notes)
