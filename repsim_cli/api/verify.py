"""Is it the same model, and if not, where does it first differ? Opens two models, and writes the answer to a run
folder."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from repsim_cli.api.entries import label_entries
from repsim_cli.api.new_run import new_run
from repsim_cli.api.opened import NamedModel, OpenedModel, find_model, load_sides, make_hardware
from repsim_cli.base.environment import read_command
from repsim_cli.base.errors import BadInput, RepsimError
from repsim_cli.base.files import expand_path
from repsim_cli.base.settings import Hardware
from repsim_cli.data.text import embedded_text, local_text
from repsim_cli.models.checkpoints import hash_files
from repsim_cli.models.transformers import predicts_next
from repsim_cli.runs.content import Results, Table
from repsim_cli.runs.results import Progress, quiet
from repsim_cli.studies.verify import inputs, tokens
from repsim_cli.studies.verify.answer import DIFFERENT, Answer, name_part_ranges
from repsim_cli.studies.verify.beside import compare_dumps, find_different_token
from repsim_cli.studies.verify.dump import Dump, dump_files, read_dump
from repsim_cli.studies.verify.inputs import PROBES, Batch
from repsim_cli.studies.verify.saved import Saved, is_saved, load, save
from repsim_cli.studies.verify.sides import InMemory
from repsim_cli.studies.verify.stream import replay_on
from repsim_cli.studies.verify.study import verify_models

NOT_COMPARED = "weights and parts are not compared on the ids of the reference"
Texts = Iterable[Any] | str | os.PathLike[str] | None


def verify(  # noqa: PLR0913 - the public interface
    reference: Any,
    candidate: Any,
    texts: Texts = None,
    *,
    quick: bool = False,
    layer_ids: Sequence[int] | None = None,
    by_block: str = "auto",
    memory_gb: float | None = None,
    folder: str | os.PathLike[str] | None = None,
    progress: Progress = quiet,
) -> Answer:
    """Tells whether the candidate is the same model as the reference, and if not, where it first differs.

    reference, candidate: folders, .gguf files, hub ids, names of `repsim list model`, entries of a configuration
        ({"kind": ...}), transformers models or (model, tokenizer), or any two torch modules; a file of
        `save_reference` as reference; or stored activations with token ids (docs/verify.md has the layouts), on which
        the blocks of the other side are run.
    texts: a list of texts, or a file of text; None: text that ships with the package. Of torch modules: a list of
        batches (tensors, or mappings of arguments). Inputs that reveal what text does not show are added to texts. With
        stored activations: the prompts (of a file, a line each), whose token ids are then compared first.
    quick: the rounding of the reference is not measured, and the text alone is tried, in rows and padded on the left.
    layer_ids: of stored activations that do not say which layers they hold, what the engine was given.
    by_block: `always` holds one block of each model at a time in memory, `never` whole models; `auto` one block where
        the weights of both would take more than half of `memory_gb`.
    memory_gb: what may be taken; None: 80 % of the machine's memory.
    folder: a new or empty folder for the run; None: nothing is written.
    Raises repsim_cli.BadInput for models that cannot be compared, and RunFailed where one cannot be run.
    Example: print(repsim_cli.verify("models/mine", model))
    """
    if texts is not None and not isinstance(texts, str | os.PathLike):
        texts = _read_texts(texts)
    if layer_ids is not None and not (isinstance(layer_ids, Sequence) and all(type(each) is int for each in layer_ids)):
        raise BadInput(f"layer_ids: not whole numbers, got {layer_ids!r:.60}; write [0, 4, 8]")
    first = (
        _read_reference(reference)
        or _read_dump(reference, "reference", layer_ids)
        or find_model("reference", reference)
    )
    if _is_reference_file(candidate):
        raise BadInput(f"candidate: what --save wrote is a reference, got '{candidate}' second; give the file first")
    second = _read_dump(candidate, "candidate", layer_ids) or find_model("candidate", candidate)
    _check(first, second, texts, quick, layer_ids)
    first, second = load_sides(first, second, make_hardware(by_block, memory_gb))
    if folder is None:
        return _answer(first, second, texts, progress, quick)
    about = {"name": "verify", "study": "verify", "seed": 0, "command": read_command(), "overrides": []}
    with new_run(expand_path(folder), **about) as run:
        source = {"source": str(reference)} if isinstance(first, Saved) else _identify_side(first)
        run.input("models", {"reference": source, "candidate": _identify_side(second)})
        with run.stage("verify"):
            answer = _answer(first, second, texts, progress, quick)
        run.write_results(make_results(answer))
    return answer


def assert_same(reference: Any, candidate: Any, texts: Texts = None) -> None:
    """Raises AssertionError, whose message is the answer, where the candidate is another model than the reference.

    The arguments are those of `repsim_cli.verify`.
    Example: repsim_cli.assert_same("models/mine", model)
    """
    answer = verify(reference, candidate, texts)
    if not answer.same:
        raise AssertionError(str(answer))


def _check(first: Any, second: Any, texts: Texts, quick: bool, layer_ids: Sequence[int] | None) -> None:
    """Raises BadInput for settings that do not go with these sides, before any weights are read."""
    dumps = [isinstance(each, Dump) for each in (first, second)]
    if layer_ids is not None and not any(dumps):
        raise BadInput(f"layer_ids: only for stored activations, got {list(layer_ids)} with two models; drop it")
    if isinstance(first, Saved) and dumps[1]:
        raise BadInput(
            f"{second.label}: a file that --save wrote needs a model to run, got stored activations; give the model"
        )
    if isinstance(first, Saved) and quick:
        raise BadInput("quick: a saved reference has its own rounding and inputs, and nothing is measured; drop it")
    if isinstance(first, Saved) and texts is not None:
        raise BadInput("texts: a saved reference has its own, got others; drop them, or save it again with them")
    if all(dumps) and (texts is not None or quick):
        raise BadInput(f"{'quick' if quick else 'texts'}: two dumps have their own tokens, and nothing is run; drop it")
    for dump, model in ((first, second), (second, first)):
        if isinstance(dump, Dump) and isinstance(model, NamedModel) and dump.depths and predicts_next(model.source):
            dump.index_streams(model.source.layers)  # which refuses blocks that the model does not have


def make_results(answer: Answer) -> Results:
    """Writes the answer as the results of a run: tables of places and of inputs, and all of it under `about`."""
    columns = ["unit", "place", "kind", "relative error", "times its rounding", "inputs"]
    rows: list[list[Any]] = [
        [each.unit, each.here, each.kind, each.relative, each.times, ", ".join(each.inputs)]
        for each in answer.differences
    ]
    tables = {"differences": Table(columns=columns, rows=rows)} if rows else {}
    tried = [[name, sum(name in each.inputs for each in answer.differences)] for name in answer.inputs]
    tables["inputs tried"] = Table(columns=["input", "differences that it shows"], rows=tried)
    return Results(study="verify", tables=tables, about={"verify": {**answer.record(), "lines": answer.lines()}})


def _identify_side(side: "OpenedModel | Dump") -> Mapping[str, Any]:
    if isinstance(side, Dump):
        return {"source": str(side.files[0]), "files": len(side.files), "weights_hash": hash_files([*side.files])}
    return side.identity


def _read_dump(given: Any, key: str, layer_ids: Sequence[int] | None) -> Dump | None:
    """Reads stored activations; None where something else is given. Raises BadInput where they cannot be read."""
    settings: dict[str, Any] = {"layer_ids": layer_ids}
    if isinstance(given, Mapping) and given.get("kind") == "precomputed" and "path" in given:
        settings |= {name: value for name, value in given.items() if name not in ("kind", "path")}
        if unknown := {*settings} - {"layers", "layer_ids", "ids", "documents"}:
            raise BadInput(
                f"{key}: unknown settings of stored activations, got {', '.join(sorted(unknown))}; drop them"
            )
        given = given["path"]
    elif not isinstance(given, str | os.PathLike) or not dump_files(expand_path(given)):
        return None
    else:
        key = next(iter(label_entries([given])))
    return read_dump(expand_path(given), key, **settings)


def _answer(
    first: OpenedModel | Saved | Dump, second: OpenedModel | Dump, texts: Texts, progress: Progress, quick: bool
) -> Answer:
    labels = (first.label, second.label if second.label != first.label else f"{second.label} (candidate)")
    if isinstance(first, Dump) or isinstance(second, Dump):
        assert not isinstance(first, Saved)
        return _compare_dumps(first, second, labels, texts, progress, quick)
    if isinstance(first, Saved):
        return _compare_with_file(first, second, progress)
    sides, notes = _match_heads(first, second)
    models = sides[0].model, sides[1].model
    lacking = [label for label, each in zip(labels, (first, second), strict=True) if each.tokenizer is None]
    given = None if texts is None else _read_texts(texts)
    if given and not all(isinstance(text, str) for text in given):
        batches = [
            inputs.read_batch("text" if len(given) == 1 else f"batch {i}", batch) for i, batch in enumerate(given)
        ]
        answer = verify_models(*sides, batches, labels, progress, quick=quick)
        return replace(answer, notes=[*notes, *answer.notes])
    shapes = [
        inputs.read_input_shape(model, each.tokenizer) for model, each in zip(models, (first, second), strict=True)
    ]
    if shapes[0] is None or shapes[1] is None:
        raise BadInput(
            f"texts: a module that reads no tokens takes batches, got {type(models[0]).__name__}; give a list of "
            "tensors to repsim_cli.verify"
        )
    documents: Iterator[str] = iter(given) if given else embedded_text().documents()
    some = list(chain.from_iterable([_take_first_texts(documents), PROBES.values()]))
    other = None
    if lacking:
        notes.append(_say_lacking(lacking))
    else:
        other, more = tokens.compare_tokenizers(first.tokenizer, second.tokenizer, some)
        notes += more
    try:
        batches = _make_common_batches(models[0], first.tokenizer, some, shapes[0], shapes[1])
        batches = [batches[0], batches[2]] if quick else batches
        answer = verify_models(*sides, batches, labels, progress, quick=quick)
    except RepsimError as error:
        if other is None:
            raise
        answer = Answer(DIFFERENT, *labels, inputs=["text"], notes=[f"{NOT_COMPARED} ({error})"])
    return tokens.put_token_ids_first(other, answer, notes)


def _say_lacking(labels: Sequence[str]) -> str:
    return f"token ids are not compared: no tokenizer for {', '.join(labels)}"


def save_reference(reference: Any, file: str | os.PathLike[str], texts: Texts = None) -> Path:
    """Writes what a reference takes and gives, so that `verify(file, candidate)` needs no reference. Returns the file.

    reference, texts: as of `verify`. file: a new one that ends with .safetensors.
    """
    place = expand_path(file)
    if place.suffix != ".safetensors" or place.exists() or not place.absolute().parent.is_dir():
        raise BadInput(f"--save: not a new .safetensors file in a folder that exists, got '{file}'; name one")
    if isinstance(reference, str | os.PathLike) and dump_files(expand_path(reference)):
        raise BadInput(
            f"--save: only for a model that runs, got stored activations '{reference}'; use them as they are"
        )
    first, _ = load_sides(find_model("reference", reference), None, Hardware(by_block="never"))
    shape = inputs.read_input_shape(first.model, first.tokenizer)
    if shape is None:
        raise BadInput(f"reference: it reads no tokens, got {type(first.model).__name__}; give a model of texts")
    documents = iter(_read_texts(texts)) if texts is not None else embedded_text().documents()
    some = list(chain.from_iterable([_take_first_texts(documents), PROBES.values()]))
    batches = _make_common_batches(first.model, first.tokenizer, some, shape, shape)
    save(place, first.model, batches, first.label, first.tokenizer)
    return place


def _compare_dumps(
    first: OpenedModel | Dump,
    second: OpenedModel | Dump,
    labels: tuple[str, str],
    texts: Texts,
    progress: Progress,
    quick: bool,
) -> Answer:
    """Compares with stored activations; token ids first, where the texts are known."""
    if isinstance(first, Dump) and isinstance(second, Dump):
        return compare_dumps(first, second, labels)
    model, dump = (second, first) if isinstance(first, Dump) else (first, second)
    assert isinstance(model, OpenedModel)
    assert isinstance(dump, Dump)
    other = None
    if texts is not None:
        if model.tokenizer is None:
            raise BadInput(f"texts: token ids are compared with texts, got no tokenizer of {model.label}; drop them")
        ours, theirs = dump.sequences(), [model.tokenizer(x, verbose=False)["input_ids"] for x in _list_prompts(texts)]
        other = (
            find_different_token(ours, theirs, labels) if dump is first else find_different_token(theirs, ours, labels)
        )
        other = other and replace(other, inputs=["the texts"])
    answer = replay_on(dump, model.model, labels, progress, first=dump is first, quick=quick)
    return tokens.put_token_ids_first(other, answer, [])


def _list_prompts(texts: Texts) -> list[str]:
    """Lists the texts that are not empty: the lines of a file, or those that are given."""
    given = _read_texts(texts)
    if not isinstance(given[0], str):
        raise BadInput(f"texts: prompts of stored activations are text, got {type(given[0]).__name__}; give a list")
    lines = "\n".join(given).splitlines() if isinstance(texts, str | os.PathLike) else given
    return [text for text in lines if text]


def _read_texts(texts: Texts) -> list[Any]:
    """The texts, or the batches of a torch module. Raises BadInput for what is neither, and where all are empty."""
    if isinstance(texts, str | os.PathLike):
        try:
            given = list(local_text(path=os.fspath(texts)).documents())
        except BadInput as error:
            raise BadInput(f"texts: {str(error).removeprefix('path: ')}") from None
    elif isinstance(texts, Iterable) and not isinstance(texts, bytes | Mapping | Tensor):
        given = list(texts)
    else:
        raise BadInput(f"texts: not a list, got {type(texts).__name__}; give one of texts, or of batches of a module")
    if not any(text.strip() if isinstance(text, str) else True for text in given):
        raise BadInput(f"texts: all are empty, got {given!r:.60}; give some, or drop texts")
    if len({isinstance(text, str) for text in given}) > 1:
        raise BadInput("texts: texts and batches in one list, got both; give one kind")
    return given


def _read_reference(reference: Any) -> Saved | None:
    """A reference that was saved by `save_reference`."""
    return load(expand_path(reference)) if _is_reference_file(reference) else None


def _is_reference_file(given: Any) -> bool:
    return isinstance(given, str | os.PathLike) and is_saved(expand_path(given))


def _compare_with_file(first: Saved, second: OpenedModel, progress: Progress) -> Answer:
    """Compares with a saved reference, on the inputs and by the rounding that were saved."""
    lacking = [first.label] * (not first.ids) + [second.label] * (second.tokenizer is None)
    other, notes = (
        (None, [_say_lacking(lacking)])
        if lacking
        else tokens.compare_with_digests(first.tokenizer, first.ids, second.tokenizer)
    )
    notes += [
        "from a file: what is inside a part is compared on the first input alone, and no vocabulary beyond the inputs"
    ]
    if first.sketched:
        about = "of what is wrong inside one of them the first place is found, and hardly a kind"
        notes.append(f"of {name_part_ranges(first.sketched)} the file holds sketches of what is inside; {about}")
    answer = verify_models(first, second.side, first.batches, (first.label, second.label), progress)
    return tokens.put_token_ids_first(other, answer, notes)


def _match_heads(first: OpenedModel, second: OpenedModel) -> tuple[tuple[InMemory, InMemory], list[str]]:
    """Makes both sides have a head, or both none where one has none; notes what is not compared then."""
    bare = [getattr(each.model, "base_model", each.model) is each.model for each in (first, second)]
    if bare[0] == bare[1]:
        return (first.side, second.side), []
    which = "reference" if bare[0] else "candidate"
    return (first.side.backbone(), second.side.backbone()), [f"heads are not compared: the {which} has none"]


def _make_common_batches(
    model: nn.Module, tokenizer: Any, texts: Sequence[str], shape: inputs.InputShape, other: inputs.InputShape
) -> list[Batch]:
    """Makes the inputs that both models take, with the token ids of the reference, whose tokenizer is given."""
    both = replace(
        shape,
        vocabulary=min(shape.vocabulary, other.vocabulary),
        context=min((s.context for s in (shape, other) if s.context), default=None),
        windows=sorted({*shape.windows, *other.windows}),
    )
    rows, more = [], {}
    if tokenizer is not None:
        rows = inputs.make_token_rows(texts, tokenizer, both)
        more = {name: tokenizer(text, verbose=False)["input_ids"] for name, text in PROBES.items()}
    made = inputs.make_batches(both, rows, more)
    config: Any = getattr(model, "config", None)
    if getattr(config, "is_encoder_decoder", False):
        made = [inputs.add_decoder_inputs(batch, config) for batch in made]
    return made


def _take_first_texts(documents: Iterator[str]) -> list[str]:
    """The first documents, cut to what is read of them."""
    return [text[: 16 * inputs.LENGTH] for text in islice(documents, 8 * inputs.ROWS)]
