"""The commands that hand a run to other tools: export and figures."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from sortal.cli.options import Device, Flag, RunFolder, Workers

EXPORT_EXAMPLES = """\
Examples:
  sortal export photos-run --format folders --out sorted
  sortal export photos-run --format coco --out photos.json
"""
FIGURES_EXAMPLES = """\
Examples:
  sortal figures photos-run
  sortal figures photos-run --which attention --images oak/1.jpg --out pictures
"""
Format = Literal["csv", "parquet", "folders", "coco", "fiftyone", "labelstudio", "imagefolder"]
OUT = "New file or folder to write; RUN-FORMAT in the current folder by default."
HOW = "How images are placed into a folder."
WHICH = "Comma-separated figures to draw; all by default."
SHOWN = "Files to show attention on; a sample of old and new classes by default."


def export(
    run: RunFolder,
    *,
    format: Annotated[Format, Parameter(help="Format to write.")],
    out: Annotated[Path | None, Parameter(help=OUT)] = None,
    how: Annotated[Literal["hardlink", "symlink", "copy"], Parameter(help=HOW)] = "hardlink",
    force: Annotated[Flag, Parameter(help="Overwrite a file, or a folder written by an earlier export.")] = False,
) -> int:
    """Export a run for other tools.

    Originals are never moved or changed: folders contain hard links to them,
    symbolic links or copies.

    Exit codes: 0 done; 1 failed; 2 bad usage or input; 3 done, but some files
    no longer exist and were left out; 130 interrupted.
    """
    from sortal.cli import printing

    with printing.runtime("Reading the run") as runtime:
        from sortal.runs.export import export
        from sortal.runs.storage import load_run

        written = export(load_run(run), format, out, how=how, force=force, runtime=runtime)
    print(*printing.exported(written), sep="\n")
    return 3 if written.missing else 0


def figures(
    run: RunFolder,
    *,
    out: Annotated[Path | None, Parameter(help="Folder to write into; RUN/figures by default.")] = None,
    which: Annotated[str | None, Parameter(metavar="NAME,…", help=WHICH)] = None,
    images: Annotated[list[str] | None, Parameter(consume_multiple=True, negative="", help=SHOWN)] = None,
    seed: Annotated[int, Parameter(help="Seed of the samples and of the map.")] = 0,
    device: Device = "auto",
    workers: Workers = None,
    force: Annotated[Flag, Parameter(help="Overwrite files that are not figures drawn by Sortal.")] = False,
) -> None:
    """Draw figures of a run for print, each as PNG and SVG.

    The figures are tsne (features before and after training), attention (the
    regions each head of the last block attends to, before and after), k-curve
    (accuracy on labelled images against k), risk-coverage (accuracy on the most
    confident images) and legacy (how matching old and new classes separately
    inflates accuracy). A figure that the run lacks the data for is left out,
    with the reason.
    """
    from sortal.cli import printing

    with printing.runtime("Reading the run", device, workers) as runtime:
        from sortal.research.figures import draw
        from sortal.runs.storage import load_run

        names = None if which is None else which.split(",")
        drawn = draw(load_run(run), out, which=names, images=images, seed=seed, force=force, runtime=runtime)
    print(*printing.drawn(drawn), sep="\n")
