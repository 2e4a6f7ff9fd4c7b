"""Figures are drawn whatever the numbers are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bcs_lab.report import figures
from bcs_lab.report.table import RUN, Row, paper_rows


def test_training_curves_are_saved_whole(tmp_path: Path) -> None:
    history = [{"epoch": epoch, "train_loss": 1 / epoch, "val_loss": 1 / epoch, "lr": 1e-3} for epoch in (1, 2, 3)]
    path = figures.save(figures.training_curves({7: history, 13: history[:1]}, {7: 3, 13: 1}), tmp_path / "c.png")
    with Image.open(path) as image:
        image.load()
        assert image.width > 500
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("values", [np.array([0.1, 0.5, np.nan]), np.array([0.5]), np.array([])])
def test_predictions_with_gaps(values: np.ndarray, tmp_path: Path) -> None:
    figure = figures.prediction_against_consensus(
        {"T-PAS": values, "T-SAS": values},
        {"T-PAS": values, "T-SAS": values},
        {"T-PAS": values * 0, "T-SAS": values * 0},
        {"T-PAS": "r = –", "T-SAS": ""},
    )
    figures.save(figure, tmp_path / "p.png")


def test_comparison_is_one_svg_element() -> None:
    rows = [Row(RUN, "<b>", {"pas_r": 0.5, "sas_r": None}, {"pas_r": [0.4, 0.6]}), *paper_rows()]
    text = figures.svg(figures.comparison(rows))
    assert text.startswith("<svg")
    assert "<b>" not in text
