"""The commands `ablations fill` (put numbers into a text) and `ablations paper` (write the tables of a paper)."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from ablations.cli import options
from ablations.cli.inspect import text_of
from ablations.cli.report import draw_figures, print_table, write_out
from ablations.cli.terminal import say
from ablations.cli.verbs import verbs
from ablations.extras.paper.read import read_paper
from ablations.extras.paper.verify import named_table
from ablations.service.selected import Selectors, choose_table
from ablations.service.tables import table_of
from experiments.errors import UserError, explain_os_errors
from reports.render.numbers import as_macros, numbers
from reports.render.numbers import fill as fill_text


def fill(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Markdown or Typst with {{base.bleu}} in its text.")],
    study: options.MaybeStudy = None,
    *,
    selectors: Selectors,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="File to write; the terminal if unset.")] = None,
) -> None:
    """Replace {{ROW.COLUMN.change}} in a text by the table's numbers.

    Lines `<!-- table: STUDY … -->` in the text name the tables; without such lines, STUDY is used.
    """
    text = text_of(file)
    named = None if study else read_paper(file, text)
    if named and named.tables:
        tables = [table_of(named_table(one, named, selectors)) for one in named.tables]
    elif study is None:
        raise UserError(f"{file} names no table. Write <!-- table: STUDY --> into it, or add STUDY to the command.")
    else:
        tables = [table_of(choose_table(study, selectors, say))]
    filled = fill_text(text, {name: number for table in reversed(tables) for name, number in numbers(table).items()})
    if out is None:
        typer.echo(filled, nl=False)
    else:
        write_out(out, filled.encode())


def paper(
    studies: Annotated[list[str], typer.Argument(metavar="STUDY…", help="The studies whose tables the paper prints.")],
    selectors: Selectors,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder to write.")] = Path("paper"),
) -> None:
    """Write the parts of a paper: each study's table, numbers, figures, setup paragraph, checklist and bundle.

    README.md lists the command that makes each file; `ablations verify DIR` checks them.
    """
    with explain_os_errors(f"write to {out}"):
        out.mkdir(parents=True, exist_ok=True)
    lines = ["# How each file is made", ""]
    packs = verbs().get("bundle")  # a command of another extra, which may be missing
    for study in studies:
        chosen = choose_table(study, selectors, say)
        name, words = chosen.study.name, chosen.to_paste or shlex.quote(study)
        made = {
            f"{name}.tex": f"ablations report {words} --format latex --out",
            f"{name}-numbers.tex": f"ablations report {words} --macros",
            f"{name}-setup.md": f"ablations report {words} --format setup --out",
        }
        if packs:  # the bundle comes first, because it refuses an unfinished table
            made[f"{name}.tar.gz"] = f"ablations bundle {words} --out"
            packs.function(study, selectors=selectors, out=out / f"{name}.tar.gz")
        print_table(chosen, "latex", out / f"{name}.tex")
        print_table(chosen, "setup", out / f"{name}-setup.md")
        write_out(out / f"{name}-numbers.tex", as_macros(table_of(chosen)).encode())
        figures = draw_figures(chosen, "auto", "pdf", out / f"{name}-figures")
        lines += [f"- `{file}`: `{command} {out / file}`" for file, command in made.items()]
        if figures:
            lines.append(
                f"- `{name}-figures`: `ablations report {words} --figures pdf --out {out / f'{name}-figures'}`"
            )
    write_out(out / "README.md", ("\n".join([*lines, "", f"Check them with `ablations verify {out}`.", ""])).encode())
    typer.echo(f"{out}: {', '.join(sorted(path.name for path in out.iterdir()))}")
