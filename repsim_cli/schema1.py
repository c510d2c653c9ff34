"""Run folders of the first schema, read as those of the second.

Their curves had six forms and their studies keys of their own. Numbers are kept as they are. What an analysis can make
again from the matrices is left to `repsim analyse`; nothing is known of the models' families and training.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

Fields = dict[str, Any]
ALWAYS = {
    "convergence": ["maps", "convergence"],
    "effective_rank": ["convergence"],
    "training_view": ["maps", "convergence", "training_view"],
    "outputs": ["maps"],
    "similarity": ["maps"],
    "attention": ["maps"],
    "pretrain": ["pretraining"],
    "stitching": ["stitching"],
    "finetune": ["classifiers"],
    "modular_training": ["modular_sums"],
    "probes": ["probes"],
}
ANALYSED = ("similarity", "attention", "outputs", "convergence", "effective_rank", "training_view")  # again
ANALYSES = {"agreement": "agreement", "distances": "distances", "by_layer": "localization"}
THRESHOLDS = ("early_similarity", "early_share", "large_parameters", "large_gradients")
CELLS = ("se", "p", "calibrated", "tested", "low", "high")
COSINES = ("cka", "cka_rbf", "cka_unbiased", "rsa", "rsa_euclidean")
# by view, the names of its settings in schema 1 and in schema 2
VIEWS = {
    "histograms": {"bins": "bins", "distance_scale": "scale"},
    "neighbours": {"k": "k", "perplexity": "perplexity", "samples": "samples"},
    "couplings": {"pairs": "pairs", "restarts": "restarts"},
}
# by study or kind of model the settings that are beside those of its recipe
BESIDE = {
    "stitching": ("pairs", "grid", "evaluation", "baselines", "labels"),
    "pretrain": (),
    "pretrained": ("kind", "config", "tokenizer", "path", "seed"),
    "pretrained_series": ("kind", "seed"),
    "modular": ("kind", "seed"),
    "finetuned": (
        "kind", "config", "path", "hub", "revision", "tokenizer", "shared", "train", "evaluate", "hans", "seeds",
    ),
}  # fmt: skip
SHARED = "shared_"  # began the names of the settings of a shared encoder
UNKNOWN = "unknown"


def results(document: Mapping[str, Any]) -> Fields:
    """results.json of schema 1 as that of schema 2."""
    study = document.get("study")
    curves: dict[str, Fields] = {}
    for key, stored in document.get("curves", {}).items():
        for name, curve in _curves(key, stored):
            curves.setdefault(name, curve)["lines"].update(curve["lines"])
    curves |= dict(_sub_networks(document))
    analyses = {str(curve["analysis"]) for curve in curves.values() if "analysis" in curve}
    matrices = dict(_matrices(document))
    analyses |= {name for name in ("agreement", "distances") if name in document}
    views = document.get("views", {})
    names = [*ALWAYS.get(str(study), []), *sorted(analyses), *(view for view in VIEWS if view in views)]
    about = document.get("stitching", {}) | {key: document[key] for key in ("heads",) if key in document}
    about |= {"batch": views["batch"]} if views else {}
    options = {"stitching": {"metric": about.get("metric")}}
    return {
        "study": study,
        "measures": [_measured(measure) for measure in document.get("measures", [])],
        "matrices": matrices,
        "tables": {name: dict(table) for name, table in document.get("tables", {}).items()},
        "curves": curves,
        "claims": [_verdict(claim) for claim in document.get("claims", [])],
        "analyses": {name: {"options": options.get(name, {}), "code": "schema 1"} for name in dict.fromkeys(names)},
        "about": about,
        "warnings": document.get("warnings", []),
        "marks": document.get("marks", {}),
    }


def _measured(measure: Mapping[str, Any]) -> Fields:
    keys = ("name", "label", "settings", "estimate", "card", "null")
    return {
        **{key: measure[key] for key in keys if key in measure},
        "card": {**measure["card"], "cosine": measure["name"] in COSINES},
        "matrices": [
            {
                **{key: matrix[key] for key in ("rows", "columns", "values", "n", *CELLS) if key in matrix},
                "details": {
                    key: path
                    for key, path in matrix.items()
                    if key not in ("rows", "columns", "values", "n", *CELLS) and path is not None
                },
            }
            for matrix in measure["matrices"]
        ],
    }


def _matrices(document: Mapping[str, Any]) -> Iterator[tuple[str, Fields]]:
    agreed = document.get("agreement")
    if agreed:
        side = {"model": "measures", "layers": agreed["measures"]}
        about = {"n": agreed["pairs"], "label": "Spearman's rho", "bounds": [-1.0, 1.0], "analysis": "agreement"}
        yield "agreement of measures", {"rows": side, "columns": side, "values": agreed["rho"], **about}
    heads = [
        f"{model['model']} {layer}.h{head}"
        for model in document.get("heads", [])
        for layer in model["layers"]
        for head in range(model["heads"])
    ]
    for probe in document.get("probes", {}).get("errors", []):
        about = {"kind": "probes", **{key: probe[key] for key in ("probe", "label", "error")}}
        yield (
            f"{probe['probe']}, {probe['model']}",
            {
                "rows": {"model": probe["model"], "layers": probe["layers"]},
                "columns": {"model": "targets", "layers": probe["targets"]},
                "values": probe["values"],
                "details": {"control": probe["control"]},
                "label": "held-out error (0: perfect)",
                "bounds": [0.0, 1.0],
                "about": about,
            },
        )
    for measure in document.get("measures", []):
        if "heads" in measure:
            side = {"model": "heads", "layers": heads}
            label = f"{measure['card']['label']} of two heads"
            about = {"label": label, "about": {"measure": measure["label"]}, "n": measure["estimate"]["rows"]}
            yield f"heads, {measure['label']}", {"rows": side, "columns": side, "values": measure["heads"], **about}
    for name, stored in document.get("distances", {}).items():
        side = {"model": "models", "layers": stored["models"]}
        about = {"about": {"distance": name, "layers": stored["label"]}, "analysis": "distances"}
        label = {"label": "distance (smaller is closer)", "bounds": [0.0, None]}
        yield f"{name}, between models", {"rows": side, "columns": side, "values": stored["values"], **label, **about}
    yield from _views(document)


def _sub_networks(document: Mapping[str, Any]) -> Iterator[tuple[str, Fields]]:
    """What the figures of the layers of single models are drawn of."""
    labels = {measure["label"]: measure["card"]["label"] for measure in document.get("measures", [])}
    for measure, models in document.get("sub_networks", {}).items():
        for model, stored in models.items():
            names = stored["layers"]
            groups = {method: partition["labels"] for method, partition in stored["groups"].items()}
            for of, at, lines, label in (
                ("sub-networks", names, groups, "sub-network"),
                ("to the next layer", names[:-1], {"to the next layer": stored["consecutive"]}, labels[measure]),
            ):
                about = {"quantity": f"{of}, {measure}", "of": of, "measure": measure, "model": model}
                origin = {"about": about, "analysis": "sub_networks"}
                axes = {"x": _axis("layer"), "y": _axis(label)}
                yield f"{of}, {measure}, {model}", {**axes, "at": at, "lines": lines, **origin}


def _views(document: Mapping[str, Any]) -> Iterator[tuple[str, Fields]]:
    """What the figures of histograms and couplings are drawn of. Of neighbours, too little was kept."""
    views = document.get("views", {})
    for stored in views.get("histograms", []):
        yield (
            f"histograms of {stored['model']}",
            {
                "rows": {"model": stored["model"], "layers": stored["layers"]},
                "columns": {"model": "bins", "layers": []},
                "values": stored["counts"],
                "n": stored["rows"],
                "details": {"edges": stored["edges"]},
                "about": {"kind": "histograms", "scale": stored["scale"]},
            },
        )
    for stored in views.get("couplings", []):
        names = [f"row {number}" for number in views["batch"]["rows"]]
        about = {key: stored[key] for key in ("model", "starts", "objective")}
        yield (
            f"coupling of {stored['model']}, {stored['rows']} and {stored['columns']}, {stored['starts']}",
            {
                "rows": {"model": stored["rows"], "layers": names},
                "columns": {"model": stored["columns"], "layers": names},
                "values": stored["coupling"],
                "n": len(names),
                "about": {"kind": "couplings", **about},
            },
        )


def _verdict(claim: Mapping[str, Any]) -> Fields:
    source, _, says = claim.get("source", "").partition(": ")
    known = {
        key: claim.get(key) for key in ("name", "measure", "statistic", "value", "se", "threshold", "p", "opposite_p")
    }
    return {**known, "source": source, "says": says, "verdict": claim["verdict"], "why": claim.get("why", "")}


def _curves(name: str, stored: Any) -> Iterator[tuple[str, Fields]]:
    """The curves of schema 2 that hold what a curve of schema 1 held."""
    if isinstance(stored, list):  # the loss at every step
        yield (
            "training loss",
            _line("loss", "nats per token", list(range(len(stored))), stored, {"quantity": "training loss"}),
        )
    elif "by_layer" in stored:
        yield from _by_layer(name, stored)
    elif "pairs_of" in stored:
        yield name, _of_groups(stored)
    elif "percentiles" in stored:
        yield name, _of_training(stored)
    elif "head layer" in stored:
        about = {
            key: stored[key] for key in ("quantity", "head", "tail", "head layer", "tail layer", "own", "diverged")
        }
        yield name, _line("training loss", "nats", stored["steps"], stored["values"], about, of="loss")
    elif "stage" in stored:
        about = {key: stored[key] for key in ("quantity", "model", "stage")}
        name = f"{stored['quantity']} of {stored['stage']}, {stored['model']}"
        yield (
            name,
            {
                **_line(stored["label"], "", stored["steps"], stored["mean"], about, of=stored["rows"]),
                "x": _axis("epoch"),
            },
        )
    elif "loss" in stored:
        yield name, _line("training loss", "nats", stored["steps"], stored["loss"], {"quantity": name}, of="loss")
    else:
        quantity = stored["quantity"]
        of = quantity.removeprefix("held-out ")
        yield quantity, _line(of, stored["label"], stored["steps"], stored["mean"], {"quantity": quantity}, of=of)


def _axis(name: str, unit: str = "") -> Fields:
    return {"name": name, "unit": unit}


def _line(name: str, unit: str, at: list[Any], values: list[Any], about: Fields, of: str = "loss") -> Fields:
    return {"x": _axis("step"), "y": _axis(name, unit), "at": at, "lines": {of: values}, "about": about}


def _by_layer(name: str, stored: Mapping[str, Any]) -> Iterator[tuple[str, Fields]]:
    for model, values in stored["by_layer"].items():
        lines = {way: line for way, line in values.items() if way != "layers"}
        of = {"row": "localization", "same layer": "base_model", "KL": "histograms"}
        yield (
            f"{name}, {model}",
            {
                "x": _axis("layer"),
                "y": _axis(stored["label"]),
                "at": values["layers"],
                "lines": lines,
                "about": {"quantity": name, "model": model},
                "analysis": of.get(next(iter(lines)), "neighbours"),
            },
        )


def _of_groups(stored: Mapping[str, Any]) -> Fields:
    level = f"{100 * stored['level']:.0f} %"
    sides = {"models": ("", f"{level} over draws of models"), "pairs": ("pairs_", f"{level} over draws of pairs")}
    return {
        "x": _axis("layer"),
        "y": _axis(stored["label"]),
        "at": stored["layers"],
        "lines": {" and ".join(pair): line for pair, line in zip(stored["models"], stored["values"], strict=True)},
        "mean": stored["mean"],
        "bands": {
            name: {"low": stored[f"{prefix}low"], "high": stored[f"{prefix}high"], "of": of}
            for name, (prefix, of) in sides.items()
            if stored.get(f"{prefix}low") is not None
        },
        "about": {key: stored[key] for key in ("quantity", "point", "pairs_of", "shares", "replicates")},
        "analysis": "groups",
    }


def _of_training(stored: Mapping[str, Any]) -> Fields:
    bands = {"quartiles": ("25", "75"), "deciles": ("10", "90")}
    quantity = stored["quantity"]
    measure = {"measure": quantity.rpartition(" to ")[0], "larger_is_closer": True} if " to " in quantity else {}
    return {
        "x": _axis("step"),
        "y": _axis(stored["label"]),
        "at": stored["steps"],
        "lines": dict(zip(stored["layers"], stored["values"], strict=True)),
        "mean": stored["mean"],
        "bands": {
            name: {
                "low": stored["percentiles"][low],
                "high": stored["percentiles"][high],
                "of": f"{low}th to {high}th percentile of layers",
            }
            for name, (low, high) in bands.items()
        },
        "errors": dict(zip(stored["layers"], stored["se"], strict=True)) if stored.get("se") else {},
        "bounds": stored["bounds"],
        "about": {**{key: stored[key] for key in ("quantity", "point", "model", "parameters")}, **measure},
    }


def config(document: Mapping[str, Any]) -> Fields:
    """A configuration of schema 1 as that of schema 2: claims and analyses have keys of their own."""
    options = dict(document.get("options") or {})
    analyses: Fields = {}
    for option, name in ANALYSES.items():
        if options.pop(option, False):
            analyses[name] = {}
    if (sub_networks := options.pop("sub_networks", None)) is not None:
        analyses["sub_networks"] = sub_networks
    if (factor := options.pop("factor", None)) is not None:
        analyses["architecture"] = {"factor": factor}
    if thresholds := {key: options.pop(key) for key in THRESHOLDS if key in options}:
        analyses["ranks"] = thresholds
    options.pop("couplings", None)
    if document.get("study") == "views":
        views = options.pop("views", None) or list(VIEWS)
        for view, keys in VIEWS.items():
            settings = {after: options.pop(before) for before, after in keys.items() if before in options}
            options[view] = settings if view in views else None
    claims = options.pop("claims", None) or []
    study = document.get("study")
    if (metric := options.pop("metric", None)) is not None:
        analyses["stitching"] = {"metric": metric}
    if study == "identity_stitching":
        study, options = "stitching", {"evaluation": None, "recipe": {"layer": "identity"}}
        document = {**document, "extract": {**document["extract"], "hook_points": ["resid_post"]}}
    elif study in BESIDE:
        options = _with_recipe(options, BESIDE[study])
    moved = {"study": study, "options": options, "analyses": analyses, "claims": claims}
    if "model" in document:
        moved["model"] = {label: _model(entry) for label, entry in document["model"].items()}
    return {**document, **moved}


def _model(entry: Any) -> Any:
    """The entry of a model with the recipe of its training as a group of settings."""
    if not isinstance(entry, Mapping) or entry.get("kind") not in BESIDE:
        return entry
    shared = {key.removeprefix(SHARED): value for key, value in entry.items() if key.startswith(SHARED)}
    others = {key: value for key, value in entry.items() if not key.startswith(SHARED)}
    moved = _with_recipe(others, BESIDE[entry["kind"]])
    if others.get("shared") is not None:
        moved["shared"] = {"data": others["shared"], "recipe": {**moved["recipe"], **shared}}
    return moved


def _with_recipe(settings: Fields, beside: Collection[str]) -> Fields:
    kept = {key: value for key, value in settings.items() if key in beside}
    return {**kept, "recipe": {key: value for key, value in settings.items() if key not in beside}}


def facts(document: Mapping[str, Any], labels: list[str]) -> dict[str, Fields]:
    """What results of schema 1 say of the models of a run: the layers that were read, and of models in groups how many
    blocks they have. labels: of the models."""
    layers: dict[str, list[str]] = {}
    for measure in document.get("measures", []):
        for matrix in measure["matrices"]:
            for side in (matrix["rows"], matrix["columns"]):
                layers[side["model"]] = side["layers"]
    blocks = next(_blocks(document), None)
    return {
        label: {"kind": UNKNOWN, "family": UNKNOWN, "layers": layers.get(label, []), "widths": [], "blocks": blocks}
        for label in labels
    }


def _blocks(document: Mapping[str, Any]) -> Iterator[int]:
    """How many blocks the models of groups have, from each layer and the share of blocks at or below it."""
    for curve in document.get("curves", {}).values():
        if isinstance(curve, dict) and "pairs_of" in curve and curve["point"] != "layers":
            for layer, share in zip(curve["layers"], curve["shares"], strict=True):
                if block := re.search(r"@(\d+)", layer):
                    yield round((int(block[1]) + 1) / share)
