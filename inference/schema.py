"""Files of schema 1 in the words of today: plain data in, plain data out.

Since then hyperparameters of priors and of feature maps have moved from models into parts of their own, and classes go
by their modules too.
"""

from __future__ import annotations

from typing import Any

Plain = dict[str, Any]


def from_schema_1(content: Any, name: str, kind: str) -> Plain:
    """The content of a file of schema 1, with the classes and arguments of today.

    Raises
    ------
    ValueError    unless it is a posterior of schema 1.
    """
    if not isinstance(content, dict) or content.get("kind") != kind:
        raise ValueError(f"{name} is not a {kind} of regbayes.")
    if content.get("schema") != 1:
        raise ValueError(
            f"{name} has schema {content.get('schema')!r}, written by regbayes {content.get('version')!r}, which this "
            "release does not read. Use the version that wrote it."
        )
    if kind != "posterior":
        raise ValueError(
            f"{name} is a {kind} of schema 1, from which this release cannot go on. Finish the fit with regbayes "
            f"{content.get('version')!r}, or fit again."
        )
    return {"metadata": {}, **content, **{part: _part(content.get(part)) for part in ("model", "backend")}}


def _part(value: Any) -> Any:
    """A configuration, its parts first."""
    if not (isinstance(value, dict) and value.keys() == {"class", "params"} and isinstance(value["params"], dict)):
        return value
    name, params = value["class"], {key: _part(inner) for key, inner in value["params"].items()}
    if name in _PRIORS:
        params["prior"] = _taken(params, _PRIORS[name], {key: key for key in _HYPERPARAMETERS[_PRIORS[name]]})
    if name in _FEATURE_MAPS:
        params["feature_map"] = _taken(params, *_FEATURE_MAPS[name])
    return {"class": _CLASSES.get(name, name), "params": params}


def _taken(params: Plain, name: str, arguments: dict[str, str]) -> Plain:
    """The part with this class, whose arguments, by their old names, leave those of the model."""
    taken = {new: params.pop(old) for old, new in arguments.items() if old in params}
    return {"class": _CLASSES[name], "params": taken}


def _in_module(path: str, *names: str) -> dict[str, str]:
    return {name: f"regbayes.{path}.{name}" for name in names}


_HYPERPARAMETERS = {
    "DirichletProcess": ("concentration", "concentration_prior"),
    "HierarchicalDirichletProcess": (
        "concentration",
        "concentration_prior",
        "top_concentration",
        "top_concentration_prior",
        "stickiness",
    ),
}
_PRIORS = {
    **dict.fromkeys(("DPM", "InfiniteSVM", "DDPM"), "DirichletProcess"),
    **dict.fromkeys(("IHMM", "DIH"), "HierarchicalDirichletProcess"),
}
_STANDARDIZED = {"feature_loc": "loc", "feature_scale": "scale", "intercept": "intercept"}
_DIRECTIONS = {
    "num_directions": "num_directions",
    "proportions": "proportions",
    "intercept": "intercept",
    "feature_loc": "loc",
    "feature_axes": "axes",
}
_FEATURE_MAPS = {
    "InfiniteSVM": ("Standardized", _STANDARDIZED),
    "DDPM": ("PrincipalDirections", _DIRECTIONS),
    "DIH": ("PrincipalDirections", _DIRECTIONS),
}
_CLASSES = {
    **_in_module("models.dpm", "DPM"),
    **_in_module("models.isvm", "InfiniteSVM"),
    **_in_module("models.ddpm", "DDPM"),
    **_in_module("models.ihmm", "IHMM"),
    **_in_module("models.dih", "DIH"),
    **_in_module("models.priors.dirichlet_process", "DirichletProcess"),
    **_in_module("models.priors.hierarchical_dirichlet_process", "HierarchicalDirichletProcess"),
    **_in_module("models.feature_maps.standardized", "Standardized"),
    **_in_module("models.feature_maps.principal_directions", "PrincipalDirections"),
    **_in_module("models.likelihoods.bernoulli", "BernoulliBeta"),
    **_in_module("models.likelihoods.diagonal_gaussian", "DiagonalGaussian"),
    **_in_module("models.likelihoods.full_gaussian", "FullGaussian"),
    **_in_module("models.likelihoods.multinomial", "MultinomialDirichlet"),
    **_in_module("models.likelihoods.poisson", "PoissonGamma"),
    **_in_module("models.likelihoods.spherical_gaussian", "SphericalGaussian"),
    **_in_module("models.losses.epsilon_insensitive", "EpsilonInsensitive"),
    **_in_module("models.losses.hinge", "Hinge"),
    **_in_module("models.losses.logistic", "Logistic"),
    **_in_module("models.losses.multiclass", "CrammerSinger", "OneVsRest"),
    **_in_module("inference.gibbs.backend", "Gibbs"),
    **_in_module("inference.svi.backend", "SVI"),
    **_in_module("inference.small_variance.backend", "SmallVariance"),
    **_in_module("inference.pyro_engines.backend", "NUTS", "Autoguide"),
}
