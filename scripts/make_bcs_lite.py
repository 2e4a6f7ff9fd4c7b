"""Make ``bcs-lite``, the evaluator that ships with the package, from the shipped bundle of real pairs.

    python scripts/make_bcs_lite.py [--out bcs_lab/assets/bcs_lite]

Takes some minutes. The same packages give the same model and the same validation, to the last digit.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bcs_lab.corpus import load_corpus
from bcs_lab.files import write_json, write_text
from bcs_lab.lite import lite_card, train_lite
from bcs_lab.model_files import CARD
from bcs_lab.report.table import number

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "bcs_lab" / "assets" / "bcs_lite")
    out = parser.parse_args().out
    for name in ("validation.json", "split.parquet"):
        (out / name).unlink(missing_ok=True)
    lite = train_lite(load_corpus("brainbank"))
    lite.ensemble.save(out)
    write_json(out / "validation.json", lite.validation)
    lite.split.to_parquet(out / "split.parquet", index=False)
    write_text(out / CARD, lite_card(lite))
    for name in ("held_out_concepts", "left_out_decoders"):
        found = lite.validation[name]["ensemble"]
        print(name, *(f"{key} {number(found[key])}" for key in ("pas_rho", "sas_rho", "pas_r", "sas_r")))
    print(f"{out}: {sum(path.stat().st_size for path in out.iterdir()) / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
