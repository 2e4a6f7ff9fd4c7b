"""Composition and checking of configs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from bcs_lab.catalogue import choices, config_dir
from bcs_lab.config import EmbedConfig, ExportConfig, ShowConfig, TrainConfig, parse
from bcs_lab.encoders import ENCODER_GROUPS, encoder_spec, list_encoders
from bcs_lab.errors import ConfigError
from bcs_lab.launch import resolve

EXPERIMENTS = sorted(path.stem for path in Path(__file__).parents[1].joinpath("experiments").glob("*.yaml"))


def composed(*overrides: str, name: str = "train") -> Any:
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        return compose(name, list(overrides), return_hydra_config=True)


def settings(*overrides: str, name: str = "train") -> dict[str, Any]:
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        return resolve(compose(name, list(overrides)))


def test_default_is_the_documented_one() -> None:
    config = parse(TrainConfig, settings())
    assert config.corpus.kind == "brainbank"
    assert config.encoder.names == ["efficientnet_lite2", "efficientnet_lite0", "lowlevel"]
    assert config.teachers == 4
    assert config.head.name == "continuous"
    assert config.split.scheme == "concept"
    assert config.seeds == [7, 13, 21, 37, 42]
    assert config.consensus.weight == "variance"


def test_defaults_equal_the_papers_table_13() -> None:
    config = parse(TrainConfig, settings())
    assert config.head.settings == {"hidden": 512, "blocks": 2, "dropout": 0.2}
    assert (config.optim.lr, config.optim.weight_decay, config.optim.schedule) == (5e-4, 5e-4, "cosine")
    trainer = config.trainer
    assert (trainer.batch_size, trainer.max_epochs, trainer.patience, trainer.gradient_clip_val) == (512, 120, 16, 1.0)
    assert config.split.fractions == (0.70, 0.15, 0.15)
    assert config.split.seed == 42


GROUPS = ("corpus", "encoder", "consensus", "split", "head", "optim", "trainer", "logger", "preset")
NEEDED = {
    "corpus=manifest": ["corpus.root=x"],
    "corpus=bundle": ["corpus.root=x"],
    "corpus=simulated": ["corpus.images=x"],
    "encoder=timm": ["encoder.name=resnet18"],
    "encoder=open_clip": ["encoder.name=ViT-B-32"],
    "encoder=transformers": ["encoder.name=some/model@v1"],
    "encoder=stored": ["encoder.names=[mine]"],
}


@pytest.mark.parametrize("override", [f"{group}={option}" for group in GROUPS for option in choices(group)])
def test_every_option_of_every_group_is_valid(override: str) -> None:
    parse(TrainConfig, settings(override, *NEEDED.get(override, [])))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_is_valid_and_says_its_command(name: str, repository: Path) -> None:
    text = (repository / "experiments" / f"{name}.yaml").read_text(encoding="utf-8")
    # Hydra reads the package only from the first line, so the command is the first comment after it.
    assert text.splitlines()[:2] == ["# @package _global_", f"# python train.py -m experiment={name}"]
    config = composed(f"experiment={name}")
    params = OmegaConf.to_container(config.hydra.sweeper.params)
    assert isinstance(params, dict)
    for key, values in params.items():
        from hydra.core.override_parser.overrides_parser import OverridesParser

        (override,) = OverridesParser.create().parse_overrides([f"{key}={values}"])
        for value in override.sweep_string_iterator():
            parse(TrainConfig, settings(f"experiment={name}", f"{key}={value}"))


def test_experiments_cover_table6_and_the_ablations() -> None:
    assert set(EXPERIMENTS) >= {"table6", "encoders", "teachers", "heads", "splits", "weights"}


def test_siglip_baseline_follows_the_authors_first_script() -> None:
    config = parse(TrainConfig, settings("preset=siglip_baseline"))
    assert config.encoder.names == ["siglip"]
    assert (config.head.name, config.teachers, config.seeds, config.consensus.weight) == ("mlp", 3, [42], "step")
    assert (config.optim.lr, config.optim.weight_decay, config.optim.schedule) == (1e-3, 1e-4, "none")
    assert (config.trainer.max_epochs, config.trainer.patience, config.trainer.gradient_clip_val) == (80, 12, None)


def test_encoder_names_and_stand_ins() -> None:
    fusion = parse(TrainConfig, settings("encoder=fusion")).encoder
    assert fusion.names == ["siglip", "clip", "dinov3"]
    assert fusion.stand_in == {"siglip": "efficientnet_lite2", "clip": "efficientnet_lite0", "dinov3": "lowlevel"}
    assert parse(TrainConfig, settings("encoder=timm", "encoder.name=resnet18@v1")).encoder.names == [
        "timm:resnet18@v1"
    ]
    stored = parse(TrainConfig, settings("encoder=stored", "encoder.names=[b,a]")).encoder
    assert stored.names == ["b", "a"]
    assert stored.only_stored


def test_options_of_an_encoder_need_no_plus() -> None:
    config = parse(TrainConfig, settings("encoder=fusion", "encoder.options.dinov3.pooling=cls"))
    assert config.encoder.given_options == {"dinov3": {"pooling": "cls"}}
    generic = parse(TrainConfig, settings("encoder=timm", "encoder.name=resnet18", "encoder.options.timm.source=/x"))
    assert generic.encoder.given_options == {"timm:resnet18": {"source": "/x"}}


@pytest.mark.parametrize("name", choices("encoder"))
def test_options_offered_are_options_of_the_encoder(name: str) -> None:
    """The settings shown in a config are those its encoders take."""
    config = parse(TrainConfig, settings(f"encoder={name}", *NEEDED.get(f"encoder={name}", []))).encoder
    for key, options in config.options.items():
        spec = encoder_spec(key if key in list_encoders() else f"{key}:model")
        assert set(options) == set(spec.options), key


def test_a_label_cannot_claim_other_encoders() -> None:
    with pytest.raises(ConfigError, match="encoder=siglip"):
        parse(TrainConfig, settings("encoder.name=siglip")).encoder.check_name()
    fewer = parse(TrainConfig, settings("encoder.names=[lowlevel]")).encoder
    fewer.check_name()
    assert fewer.label == "lowlevel"
    assert parse(TrainConfig, settings("encoder=fusion")).encoder.label == "fusion"


@pytest.mark.parametrize("group", ENCODER_GROUPS)
def test_encoder_groups_are_those_of_the_configs(group: str) -> None:
    assert parse(TrainConfig, settings(f"encoder={group}")).encoder.names == list(ENCODER_GROUPS[group])


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["force=no"], ["force", "boolean", "'no'"]),
        (["trainer.max_epochs=many"], ["trainer.max_epochs", "'many'"]),
        (["+trainer.max_epoch=3"], ["trainer.max_epoch", "did you mean 'max_epochs'"]),
        (["seeds=[7,7]"], ["seeds", "distinct"]),
        (["seeds=[]"], ["seeds"]),
        (["seeds=[-1]"], ["seeds"]),
        (["seeds=7"], ["seeds", "list"]),
        (["split.fractions=[0.5,0.5,0.5]"], ["split", "sum to 1"]),
        (["split=kfold", "split.fold=5"], ["split", "0 to 4"]),
        (["consensus.weight=median"], ["consensus.weight", "variance"]),
        (["optim.lr=0"], ["optim.lr"]),
        (["corpus.on_bad_row=ignore"], ["corpus.on_bad_row", "skip"]),
        (["corpus=demo", "corpus.size=large"], ["corpus.size", "'small' or 'paper'"]),
        (["corpus=demo", "corpus.seed=-1"], ["corpus.seed"]),
        (["corpus=simulated", "corpus.images=x", "corpus.per_image=0"], ["corpus.per_image"]),
        (["+corpus.size=small"], ["corpus", "size is a setting of corpus=demo, not of corpus=brainbank"]),
        (["corpus=demo", "+corpus.images=x"], ["images is a setting of corpus=simulated, not of corpus=demo"]),
        (["teachers=2.5"], ["1 config problem(s)", "teachers", "2.5"]),
        (["trainer.precision=foo"], ["trainer.precision", "bf16-mixed"]),
        (["encoder=lowlevel", "+encoder.options.lowlvl.foo=1"], ["encoder", "lowlvl", "lowlevel"]),
        (["trainer.max_epochs=0", "optim.lr=-1"], ["2 config problem(s)", "trainer.max_epochs", "optim.lr"]),
    ],
)
def test_bad_values_are_listed_by_key(overrides: list[str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(TrainConfig, settings(*overrides))
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_missing_values_are_named_together() -> None:
    with pytest.raises(ConfigError, match=r"corpus\.root=…, encoder\.name=…"):
        settings("corpus=manifest", "encoder=timm")


def test_other_tasks_compose() -> None:
    parse(EmbedConfig, settings("corpus.root=x", name="embed"))
    export = parse(ExportConfig, settings("corpus.root=x", "out=y", "encoders=[lowlevel]", name="corpus_export"))
    assert export.encoders == ["lowlevel"]
    show = parse(ShowConfig, settings(name="corpus_show"))
    assert (show.corpus.kind, show.corpus.size, show.n, show.out) == ("demo", "small", 12, None)
