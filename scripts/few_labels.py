"""Put the tables and figures of finished sweeps of ``experiment=few_labels`` into ``experiments/few_labels.md``.

    python train.py -m experiment=few_labels hydra.sweep.dir=runs/few_labels
    python train.py -m experiment=few_labels corpus=demo hydra.sweep.dir=runs/few_labels_demo
    python scripts/few_labels.py brainbank=runs/few_labels demo=runs/few_labels_demo

What stands between ``<!-- NAME -->`` and ``<!-- end of NAME -->`` is replaced; the rest of the page is written by hand.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bcs_lab.errors import RunError
from bcs_lab.files import write_text
from bcs_lab.report.compare import collect
from bcs_lab.report.figures import svg
from bcs_lab.report.labels import label_study, markdown
from bcs_lab.report.labels_figure import quality_figure

PAGE = Path(__file__).resolve().parents[1] / "experiments" / "few_labels.md"


def section(name: str, sweep: Path, folder: Path) -> str:
    """The block of one sweep; its figure is written beside the page.

    Raises:
        RunError: the sweep's runs do not differ in the number of training pairs, or have different test pairs.
    """
    rows, shared = collect([sweep])
    study = label_study(rows)
    if study is None:
        raise RunError(f"{sweep}: expected runs on the same test pairs that differ in split.train_pairs; found others")
    figure = folder / f"few_labels_{name}.svg"
    write_text(figure, svg(quality_figure(study)))
    return f"<!-- {name} -->\n\n![quality against labels, {name}]({figure.name})\n\n{shared}\n\n{markdown(study)}\n"


def main() -> int:
    """Write the blocks that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweeps", nargs="+", metavar="NAME=DIR", help="block of the page, and folder of a sweep")
    parser.add_argument("--page", type=Path, default=PAGE)
    arguments = parser.parse_args()
    text = arguments.page.read_text(encoding="utf-8")
    for item in arguments.sweeps:
        name, _, folder = item.partition("=")
        start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        if text.count(start) != 1 or text.count(end) != 1 or text.index(end) < text.index(start):
            raise RunError(f"{arguments.page}: expected one block {start.strip()} … {end}")
        made = section(name, Path(folder), arguments.page.parent)
        text = text[: text.index(start)] + made + text[text.index(end) :]
    write_text(arguments.page, text)
    print(f"{arguments.page}: {', '.join(arguments.sweeps)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
