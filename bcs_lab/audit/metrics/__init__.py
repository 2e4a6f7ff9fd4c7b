"""Metrics by name: what they are is data in ``conf/metric``, how they compute is in the modules beside this one.

>>> from bcs_lab.audit.metrics import list_metrics, metric_spec
>>> metric_spec("lpips").higher_is_better
False
>>> metric_spec("cosine:lowlevel").kind
'network'
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from bcs_lab.audit.metrics.base import KINDS, Family, Metric, MetricSpec, MetricUnavailable, Values
from bcs_lab.catalogue import config_dir
from bcs_lab.errors import ConfigError, EncoderError, ModelError

__all__ = [
    "LOADERS",
    "Family",
    "Metric",
    "MetricSpec",
    "MetricUnavailable",
    "Values",
    "expand",
    "list_metrics",
    "load_metric",
    "load_metrics",
    "metric_spec",
]

log = logging.getLogger(__name__)

#: ``loader`` of a spec -> module with ``load(spec, options, device, compat, shared) -> Family``.
LOADERS: Mapping[str, str] = {
    "pixel": "bcs_lab.audit.metrics.pixel",
    "lpips": "bcs_lab.audit.metrics.perceptual",
    "dists": "bcs_lab.audit.metrics.perceptual",
    "dreamsim": "bcs_lab.audit.metrics.perceptual",
    "pieapp": "bcs_lab.audit.metrics.quality",
    "pyiqa": "bcs_lab.audit.metrics.quality",
    "cosine": "bcs_lab.audit.metrics.cosine",
    "captions": "bcs_lab.audit.metrics.blip",
    "image_reward": "bcs_lab.audit.metrics.image_reward",
    "bcs": "bcs_lab.audit.metrics.model",
    "set": "bcs_lab.audit.metrics.set_level",
}

#: Names that stand for several columns.
GROUPS: Mapping[str, tuple[str, ...]] = {"bcs": ("bcs_pas", "bcs_sas")}

#: Within a kind, as the paper's tables have them; others follow by name.
ORDER = (
    "mse", "psnr", "ssim", "pixcorr", "edge_cosine", "color_histogram", "lpips", "dists", "dreamsim", "openclip",
    "dinov2", "clip_l14", "siglip", "topiq_fr", "pieapp", "alexnet2", "alexnet5", "inception", "clip",
)  # fmt: skip

#: Prefix of a metric made from any encoder, imported embeddings or a group of encoders.
COSINE = "cosine:"

COMPAT = ("correct", "reference")


def list_metrics() -> tuple[MetricSpec, ...]:
    """Every metric that has a name of its own, pixel metrics first; ``cosine:<encoder>`` comes on top."""
    return tuple(_specs().values())


def metric_spec(name: str) -> MetricSpec:
    """The facts about a metric.

    Args:
        name: one of :func:`list_metrics`, or ``cosine:<encoder>``.

    Raises:
        ConfigError: unknown; suggests near names and lists them all.
    """
    specs = _specs()
    if name in specs:
        return specs[name]
    if name.startswith(COSINE) and len(name) > len(COSINE):
        from bcs_lab.audit.metrics.cosine import cosine_spec

        return cosine_spec(name)
    known = [*specs, *GROUPS]
    near = difflib.get_close_matches(name, known, n=2, cutoff=0.6)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    raise ConfigError(
        f"metrics: unknown metric {name!r}.{hint} Known: {', '.join(known)}; the cosine of any encoder by "
        f"{COSINE}<encoder>, such as {COSINE}efficientnet_lite0."
    )


def expand(names: Sequence[str]) -> list[str]:
    """Names of columns: ``bcs`` becomes ``bcs_pas`` and ``bcs_sas``; each once, in order.

    Raises:
        ConfigError: names are unknown; lists all of them.

    >>> expand(["ssim", "bcs", "ssim"])
    ['ssim', 'bcs_pas', 'bcs_sas']
    """
    wanted = list(dict.fromkeys(column for name in names for column in GROUPS.get(name, (name,))))
    problems = []
    for name in wanted:
        try:
            metric_spec(name)
        except ConfigError as error:
            problems.append(str(error))
    if problems:
        raise ConfigError("\n".join(problems))
    return wanted


def load_metric(
    name: str,
    *,
    options: Mapping[str, Any] | None = None,
    device: str = "auto",
    compat: str = "correct",
    shared: dict[str, Any] | None = None,
) -> Metric:
    """Load a metric, ready to compute.

    Args:
        name: as in :func:`metric_spec`.
        options: over the defaults of its spec; of ``cosine:<encoder>`` the encoder's, or per encoder of a group.
        device: of networks: ``auto``, ``cpu``, ``cuda``, ``cuda:N`` or ``mps``.
        compat: ``correct``, or ``reference`` to do as the published code does where that differs.
        shared: the same dictionary for several metrics lets them share what they load.

    Raises:
        ConfigError: an unknown name, option or value of ``compat``.
        MetricUnavailable: a package or weights are missing; says which and what to do.
    """
    if compat not in COMPAT:
        raise ConfigError(f"audit.compat: expected {' or '.join(COMPAT)} but got {compat!r}.")
    spec = metric_spec(name)
    given = {key: value for key, value in (options or {}).items() if value is not None}
    if spec.loader != "cosine" or spec.options:
        unknown = sorted(set(given) - set(spec.options))
        if unknown:
            raise ConfigError(
                f"metric {name!r} has no option {', '.join(unknown)}; "
                + (f"it has {', '.join(spec.options)}." if spec.options else "it has none.")
            )
    module = import_module(LOADERS[spec.loader])
    try:
        family: Family = module.load(spec, {**spec.options, **given}, device, compat, {} if shared is None else shared)
    except (EncoderError, ModelError) as error:
        # Its ways out are those of other commands; here there are the options.
        what, _, _ = str(error).partition("\nWays out:")
        hint = f" Ways out: name a local copy with the option source of metric {name}." if what != str(error) else ""
        raise MetricUnavailable(f"{spec.title}: {' '.join(what.split())}{hint}") from error
    return Metric(spec, family)


def load_metrics(
    names: Sequence[str],
    *,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    device: str = "auto",
    compat: str = "correct",
    quiet: Sequence[str] = (),
) -> tuple[list[Metric], dict[str, str]]:
    """Load several metrics; those that cannot run are named with the reason and keep no other one from running.

    Args:
        names: as in :func:`expand`.
        options: metric (or ``bcs``) -> options.
        device: as in :func:`load_metric`.
        compat: as there.
        quiet: names that nobody asked for: no warning where they cannot run.

    Returns:
        The metrics in order, and name -> reason of those that are unavailable.

    Raises:
        ConfigError: unknown names or options.
    """
    options = options or {}
    wanted = expand(names)
    stray = sorted(set(options) - {*wanted, *GROUPS})
    if stray:
        raise ConfigError(f"metric options name {', '.join(stray)}, which is not among the metrics asked for.")
    shared: dict[str, Any] = {}
    metrics: list[Metric] = []
    unavailable: dict[str, str] = {}
    for name in wanted:
        group = next((key for key, columns in GROUPS.items() if name in columns), name)
        own = {**options.get(group, {}), **options.get(name, {})}
        try:
            metrics.append(load_metric(name, options=own, device=device, compat=compat, shared=shared))
        except MetricUnavailable as error:
            unavailable[name] = str(error)
            level = logging.DEBUG if name in quiet else logging.WARNING
            log.log(level, "metric %s is unavailable: %s", name, str(error).splitlines()[0])
    return metrics, unavailable


@lru_cache(maxsize=1)
def _specs() -> dict[str, MetricSpec]:
    folder = config_dir() / "metric"
    specs = [_read(path) for path in folder.glob("*.yaml") if not path.stem.startswith("_")]
    found = {spec.name: spec for spec in specs}
    kinds = {kind: place for place, kind in enumerate(KINDS)}
    first = {name: place for place, name in enumerate(ORDER)}
    ordered = sorted(found, key=lambda name: (kinds[found[name].kind], first.get(name, len(first)), name))
    return {name: found[name] for name in ordered}


def _read(path: Path) -> MetricSpec:
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    if values["name"] != path.stem or values["kind"] not in KINDS or values["loader"] not in LOADERS:
        raise ConfigError(f"{path}: expected the name of the file, a known kind and a known loader.")
    return MetricSpec(**values)
