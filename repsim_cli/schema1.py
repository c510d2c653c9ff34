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
# by view, the old and the new names of its settings
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
    for old, form in document.get("curves", {}).items():
        for name, curve in _curves(old, form):
            curves.setdefault(name, curve)["lines"].update(curve["lines"])
    curves |= dict(_sub_networks(document))
    made = {str(curve["analysis"]) for curve in curves.values() if "analysis" in curve}
    matrices = dict(_matrices(document))
    made |= {name for name in ("agreement", "distances") if name in document}
    views = document.get("views", {})
    names = [*ALWAYS.get(str(study), []), *sorted(made), *(view for view in VIEWS if view in views)]
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
    for name, old in document.get("distances", {}).items():
        side = {"model": "models", "layers": old["models"]}
        about = {"about": {"distance": name, "layers": old["label"]}, "analysis": "distances"}
        label = {"label": "distance (smaller is closer)", "bounds": [0.0, None]}
        yield f"{name}, between models", {"rows": side, "columns": side, "values": old["values"], **label, **about}
    yield from _views(document)


def _sub_networks(document: Mapping[str, Any]) -> Iterator[tuple[str, Fields]]:
    """What the figures of the layers of single models are drawn of."""
    labels = {measure["label"]: measure["card"]["label"] for measure in document.get("measures", [])}
    for measure, models in document.get("sub_networks", {}).items():
        for model, old in models.items():
            names = old["layers"]
            groups = {method: found["labels"] for method, found in old["groups"].items()}
            for of, at, lines, label in (
                ("sub-networks", names, groups, "sub-network"),
                ("to the next layer", names[:-1], {"to the next layer": old["consecutive"]}, labels[measure]),
            ):
                about = {"quantity": f"{of}, {measure}", "of": of, "measure": measure, "model": model}
                made = {"about": about, "analysis": "sub_networks"}
                axes = {"x": _axis("layer"), "y": _axis(label)}
                yield f"{of}, {measure}, {model}", {**axes, "at": at, "lines": lines, **made}


def _views(document: Mapping[str, Any]) -> Iterator[tuple[str, Fields]]:
    """What the figures of histograms and couplings are drawn of. Of neighbours, too little was kept."""
    views = document.get("views", {})
    for old in views.get("histograms", []):
        yield (
            f"histograms of {old['model']}",
            {
                "rows": {"model": old["model"], "layers": old["layers"]},
                "columns": {"model": "bins", "layers": []},
                "values": old["counts"],
                "n": old["rows"],
                "details": {"edges": old["edges"]},
                "about": {"kind": "histograms", "scale": old["scale"]},
            },
        )
    for old in views.get("couplings", []):
        names = [f"row {number}" for number in views["batch"]["rows"]]
        about = {key: old[key] for key in ("model", "starts", "objective")}
        yield (
            f"coupling of {old['model']}, {old['rows']} and {old['columns']}, {old['starts']}",
            {
                "rows": {"model": old["rows"], "layers": names},
                "columns": {"model": old["columns"], "layers": names},
                "values": old["coupling"],
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


def _curves(name: str, old: Any) -> Iterator[tuple[str, Fields]]:
    """The curves that one of an old form has become."""
    if isinstance(old, list):  # a loss of every step
        yield (
            "training loss",
            _line("loss", "nats per token", list(range(len(old))), old, {"quantity": "training loss"}),
        )
    elif "by_layer" in old:
        yield from _by_layer(name, old)
    elif "pairs_of" in old:
        yield name, _of_groups(old)
    elif "percentiles" in old:
        yield name, _of_training(old)
    elif "head layer" in old:
        about = {key: old[key] for key in ("quantity", "head", "tail", "head layer", "tail layer", "own", "diverged")}
        yield name, _line("training loss", "nats", old["steps"], old["values"], about, of="loss")
    elif "stage" in old:
        about = {key: old[key] for key in ("quantity", "model", "stage")}
        name = f"{old['quantity']} of {old['stage']}, {old['model']}"
        yield name, {**_line(old["label"], "", old["steps"], old["mean"], about, of=old["rows"]), "x": _axis("epoch")}
    elif "loss" in old:
        yield name, _line("training loss", "nats", old["steps"], old["loss"], {"quantity": name}, of="loss")
    else:
        quantity = old["quantity"]
        of = quantity.removeprefix("held-out ")
        yield quantity, _line(of, old["label"], old["steps"], old["mean"], {"quantity": quantity}, of=of)


def _axis(name: str, unit: str = "") -> Fields:
    return {"name": name, "unit": unit}


def _line(name: str, unit: str, at: list[Any], values: list[Any], about: Fields, of: str = "loss") -> Fields:
    return {"x": _axis("step"), "y": _axis(name, unit), "at": at, "lines": {of: values}, "about": about}


def _by_layer(name: str, old: Mapping[str, Any]) -> Iterator[tuple[str, Fields]]:
    for model, values in old["by_layer"].items():
        lines = {way: line for way, line in values.items() if way != "layers"}
        of = {"row": "localization", "same layer": "base_model", "KL": "histograms"}
        yield (
            f"{name}, {model}",
            {
                "x": _axis("layer"),
                "y": _axis(old["label"]),
                "at": values["layers"],
                "lines": lines,
                "about": {"quantity": name, "model": model},
                "analysis": of.get(next(iter(lines)), "neighbours"),
            },
        )


def _of_groups(old: Mapping[str, Any]) -> Fields:
    level = f"{100 * old['level']:.0f} %"
    sides = {"models": ("", f"{level} over draws of models"), "pairs": ("pairs_", f"{level} over draws of pairs")}
    return {
        "x": _axis("layer"),
        "y": _axis(old["label"]),
        "at": old["layers"],
        "lines": {" and ".join(pair): line for pair, line in zip(old["models"], old["values"], strict=True)},
        "mean": old["mean"],
        "bands": {
            name: {"low": old[f"{prefix}low"], "high": old[f"{prefix}high"], "of": of}
            for name, (prefix, of) in sides.items()
            if old.get(f"{prefix}low") is not None
        },
        "about": {key: old[key] for key in ("quantity", "point", "pairs_of", "shares", "replicates")},
        "analysis": "groups",
    }


def _of_training(old: Mapping[str, Any]) -> Fields:
    bands = {"quartiles": ("25", "75"), "deciles": ("10", "90")}
    quantity = old["quantity"]
    measure = {"measure": quantity.rpartition(" to ")[0], "larger_is_closer": True} if " to " in quantity else {}
    return {
        "x": _axis("step"),
        "y": _axis(old["label"]),
        "at": old["steps"],
        "lines": dict(zip(old["layers"], old["values"], strict=True)),
        "mean": old["mean"],
        "bands": {
            name: {
                "low": old["percentiles"][low],
                "high": old["percentiles"][high],
                "of": f"{low}th to {high}th percentile of layers",
            }
            for name, (low, high) in bands.items()
        },
        "errors": dict(zip(old["layers"], old["se"], strict=True)) if old.get("se") else {},
        "bounds": old["bounds"],
        "about": {**{key: old[key] for key in ("quantity", "point", "model", "parameters")}, **measure},
    }


def config(document: Mapping[str, Any]) -> Fields:
    """A configuration of schema 1 as that of schema 2: claims and analyses have keys of their own."""
    options = dict(document.get("options") or {})
    analyses: Fields = {}
    for old, name in ANALYSES.items():
        if options.pop(old, False):
            analyses[name] = {}
    if (sub_networks := options.pop("sub_networks", None)) is not None:
        analyses["sub_networks"] = sub_networks
    if (factor := options.pop("factor", None)) is not None:
        analyses["architecture"] = {"factor": factor}
    if thresholds := {key: options.pop(key) for key in THRESHOLDS if key in options}:
        analyses["ranks"] = thresholds
    options.pop("couplings", None)
    if document.get("study") == "views":
        made = options.pop("views", None) or list(VIEWS)
        for view, keys in VIEWS.items():
            settings = {new: options.pop(old) for old, new in keys.items() if old in options}
            options[view] = settings if view in made else None
    claims = options.pop("claims", None) or []
    study = document.get("study")
    if (metric := options.pop("metric", None)) is not None:
        analyses["stitching"] = {"metric": metric}
    if study == "identity_stitching":
        study, options = "stitching", {"evaluation": None, "recipe": {"layer": "identity"}}
        document = {**document, "extract": {**document["extract"], "hook_points": ["resid_post"]}}
    elif study in BESIDE:
        options = _with_recipe(options, BESIDE[study])
    made = {"study": study, "options": options, "analyses": analyses, "claims": claims}
    if "model" in document:
        made["model"] = {label: _model(entry) for label, entry in document["model"].items()}
    return {**document, **made}


def _model(entry: Any) -> Any:
    """The entry of a model with the recipe of its training as a group of settings."""
    if not isinstance(entry, Mapping) or entry.get("kind") not in BESIDE:
        return entry
    shared = {key.removeprefix(SHARED): value for key, value in entry.items() if key.startswith(SHARED)}
    others = {key: value for key, value in entry.items() if not key.startswith(SHARED)}
    if others.get("shared") is not None:
        others["shared"] = {"data": others["shared"], **shared}
    return _with_recipe(others, BESIDE[entry["kind"]])


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
