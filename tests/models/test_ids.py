"""Stored activations whose rows have ids, and the files of vLLM: rows are paired whatever their order in the files."""

import datasets
import numpy as np
import pandas
import pyarrow
import pyarrow.parquet
import pytest
import torch
from safetensors.torch import save_file

import repsim_cli
from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput

precomputed = registry.models.get("precomputed").function
NAMES = np.array([f"doc{i}" for i in range(30)])
X = np.random.default_rng(0).normal(size=(30, 5)).astype(np.float32)
Y = np.random.default_rng(1).normal(size=(30, 3)).astype(np.float32)


def npz(place, ids, **layers):
    np.savez(place.with_suffix(".npz"), ids=ids, **layers)
    return place.with_suffix(".npz")


def safetensors(place, ids, **layers):
    numbers = torch.tensor([int(each.removeprefix("doc")) for each in ids])
    save_file({"id": numbers, **{n: torch.from_numpy(x.copy()) for n, x in layers.items()}}, place.with_suffix(".safetensors"))  # fmt: skip
    return place.with_suffix(".safetensors")


def columns(ids, layers):
    return {"id": [str(each) for each in ids], **{name: x.tolist() for name, x in layers.items()}}


def parquet(place, ids, **layers):
    pyarrow.parquet.write_table(pyarrow.table(columns(ids, layers)), place.with_suffix(".parquet"))
    return place.with_suffix(".parquet")


def fixed(place, ids, **layers):
    """Lists of fixed length, as embeddings are mostly written."""
    kinds = {name: pyarrow.list_(pyarrow.float32(), x.shape[1]) for name, x in layers.items()}
    schema = pyarrow.schema([("id", pyarrow.string()), *kinds.items()])
    pyarrow.parquet.write_table(pyarrow.table(columns(ids, layers), schema=schema), place.with_suffix(".parquet"))
    return place.with_suffix(".parquet")


def folder(place, ids, **layers):
    datasets.Dataset.from_dict(columns(ids, layers)).save_to_disk(place)
    return place


def hdf5(place, ids, **layers):
    import h5py

    with h5py.File(place.with_suffix(".h5"), "w") as archive:
        archive["ids"] = [str(each) for each in ids]
        for name, x in layers.items():
            archive[name] = x
    return place.with_suffix(".h5")


@pytest.mark.parametrize("write", [npz, safetensors, parquet, fixed, folder, hdf5])
def test_rows_are_read_by_id(tmp_path, write):
    order = np.random.default_rng(2).permutation(30)
    source = precomputed(path=str(write(tmp_path / "a", NAMES[order], h9=X[order], h10=Y[order])))
    assert (source.names, source.widths, source.rows) == (["h9", "h10"], [5, 3], 30)
    ids = [str(each) if write is not safetensors else each.removeprefix("doc") for each in NAMES]
    assert sorted(source.ids) == sorted(ids)
    found = source.put_in_order(ids[4:20])
    for start, stop in ((0, 16), (3, 9), (15, 16)):
        np.testing.assert_array_equal(found.read("h9", slice(start, stop)), X[4 + start : 4 + stop])
        np.testing.assert_array_equal(found.read("h10", slice(start, stop)), Y[4 + start : 4 + stop])


def test_pairs_by_id_are_those_of_sorted_files(tmp_path):
    order = np.random.default_rng(3).permutation(30)[:27]
    whole = npz(tmp_path / "a", NAMES[:28], x=X[:28])
    other = parquet(tmp_path / "b", NAMES[order], y=Y[order])
    found = repsim_cli.compare([str(whole), str(other)], measures=["cka"])
    both = np.sort(order[order < 28])
    plain = repsim_cli.compare({"a": {"x": X[both]}, "b": {"y": Y[both]}}, measures=["cka"])
    np.testing.assert_allclose(found.matrix("a", "b").values, plain.matrix("a", "b").values, atol=1e-6)
    assert found.manifest["rows"] == len(both)
    missing = ", ".join(NAMES[i] for i in range(28) if i not in both)
    assert f"model.a: rows are left out whose ids another file lacks: {missing}" in found.warnings
    for strange, message in [
        (npz(tmp_path / "c", [f"z{i}" for i in range(30)], y=Y), "model: no id is in all files, got e.g. 'doc0' of 'a', 'z0' of 'c'"),
        ({"y": Y}, "model.b: its rows have no ids, got ids of the rows of 'a'; call their array or column `id`, or"),
    ]:  # fmt: skip
        models = {"a": str(whole), ("c" if not isinstance(strange, dict) else "b"): strange}
        models = {label: str(m) if not isinstance(m, dict) else m for label, m in models.items()}
        with pytest.raises(BadInput, match=message):
            repsim_cli.compare(models, measures=["cka"])


def test_rows_of_the_examples_of_a_table(tmp_path):
    """A model that is run on a table is compared with stored rows in any order, by the ids of the table."""
    texts = [f"rain falls on {i} roofs of house number {i * i}" for i in range(30)]
    (tmp_path / "t.csv").write_text("\n".join(["text,key", *(f"{t},{n}" for t, n in zip(texts, NAMES, strict=True))]))
    order = np.random.default_rng(4).permutation(30)
    table = {"path": str(tmp_path / "t.csv"), "id": "key"}
    settings = {"measures": ["cka"], "settings": {"extract.estimate": "full"}}
    stored = {"s": str(npz(tmp_path / "a", NAMES, x=X)), "m": "tiny_a"}
    plain = repsim_cli.compare(stored, table, **settings).matrix("s", "m").values
    stored["s"] = str(npz(tmp_path / "b", NAMES[order], x=X[order]))
    np.testing.assert_array_equal(repsim_cli.compare(stored, table, **settings).matrix("s", "m").values, plain)
    more = np.append(NAMES, ["other", "another"])
    stored["s"] = str(npz(tmp_path / "d", more, x=np.concatenate([X, X[:2]])))
    found = repsim_cli.compare(stored, table, **settings)
    np.testing.assert_array_equal(found.matrix("s", "m").values, plain)
    assert "model.s: rows are left out whose ids the data lack: other, another" in found.warnings
    stored["s"] = str(npz(tmp_path / "c", NAMES[:25], x=X[:25]))
    with pytest.raises(
        BadInput, match="model.s: examples have no row, got the ids doc25, doc26, doc27, doc28, doc29; wr"
    ):
        repsim_cli.compare(stored, table, **settings)
    with pytest.raises(
        BadInput, match="data: stored activations of 's' have an id per example, got .* by mean; use data"
    ):
        repsim_cli.compare(stored, {"path": str(tmp_path / "t.csv")}, **settings)


@pytest.mark.parametrize(
    ("ids", "settings", "message"),
    [
        (["a", "a", *NAMES[2:]], {}, "ids: 'ids' must differ between rows, got 'a' for rows 0 and 1; drop one"),
        (["", *NAMES[1:]], {}, "ids: 'ids' must have an id for each row, got none for row 0; fill it in"),
        (NAMES[:7], {}, "ids: 'ids' has another number of rows, got 7 for 30; write one a row"),
        (NAMES, {"ids": "idz"}, "ids: not an array of text or whole numbers, got 'idz'; did you mean 'ids'?"),
        (NAMES, {"layer_ids": [0]}, "layer_ids: only for files of vLLM with `hidden_states` and `token_ids`, got '.*a.npz'; drop"),
    ],
)  # fmt: skip
def test_bad_ids(tmp_path, ids, settings, message):
    with pytest.raises(BadInput, match=message):
        precomputed(path=str(npz(tmp_path / "a", ids, x=X)), **settings)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"x": [[1.0, 2.0], [3.0]]}, "path: vectors of 'x' must have one length, got 1 numbers in row 1 and 2 in row 0; drop"),
        ({"x": [[1.0, 2.0], None]}, "path: vectors of 'x' must have one length, got none in row 1 and 2 in row 0; drop"),
        ({"id": ["a", "b"], "text": ["c", "d"]}, "path: no column of vectors in '.*', got id, text; write the vector of a"),
        ({"x": [1.0, 2.0]}, "path: no column of vectors in '.*', got x; write the vector of a row"),
        ({"id": [0.5, 1.5], "x": [[1.0], [2.0]]}, r"ids: 'id' must be text or whole numbers, got double \(2,\); write it"),
        ({"id": ["a", "b"], **{f"d{i}": [0.0, 1.0] for i in range(9)}}, r"got id, d0, d1, d2, d3, ... \(10 in all\); wr"),
    ],
)  # fmt: skip
def test_bad_columns(tmp_path, columns, message):
    pandas.DataFrame(columns).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(BadInput, match=message):
        precomputed(path=str(tmp_path / "a.parquet"))


def test_categories_and_bytes_are_ids(tmp_path):
    pandas.DataFrame({"id": pandas.Categorical(NAMES), "x": X.tolist()}).to_parquet(tmp_path / "a.parquet")
    for place in (tmp_path / "a.parquet", npz(tmp_path / "b", NAMES.astype(bytes), x=X)):
        assert precomputed(path=str(place)).ids == NAMES.tolist()


def test_an_array_alone_is_a_layer(tmp_path):
    np.save(tmp_path / "a.npy", X)
    source = precomputed(path=str(tmp_path / "a.npy"))
    assert (source.names, source.widths, source.rows) == (["rows"], [5], 30)
    np.testing.assert_array_equal(source.read("rows", slice(3, 9)), X[3:9])
    np.save(tmp_path / "b.npy", X[0])
    with pytest.raises(
        BadInput, match=r"path: array 'rows' must be \(n, d\) of floats, got float32 \(5,\); write it in this form$"
    ):
        precomputed(path=str(tmp_path / "b.npy"))
    np.save(tmp_path / "c.npy", np.array([None]), allow_pickle=True)
    with pytest.raises(BadInput, match="path: not a complete .npy file of numbers, got .*Python objects"):
        precomputed(path=str(tmp_path / "c.npy"))


def test_a_plan_runs_as_many_examples_as_stored_rows_have_ids(repsim, tmp_path):
    file = npz(tmp_path / "a", NAMES, h9=X)
    (tmp_path / "t.csv").write_text("id,text\n" + "".join(f"{name},rain falls on roof {name}\n" for name in NAMES))
    table = ["data=table", f"data.path={tmp_path}/t.csv", "data.text=text", "data.id=id", "extract=pooled"]
    stored = f"+model.stored={{kind: precomputed, path: {file}}}"
    code, out, err = repsim("run", "model=[tiny_a]", stored, *table, "hardware.batch_size=8", "dry_run=true")
    assert code == 0, err
    assert "forward passes: 4\n" in out


def test_what_stored_rows_do_not_take(tmp_path):
    """Rows are as they are: settings of models that run would change nothing. Fewer shared ids are no surprise
    twice."""
    both = [str(npz(tmp_path / "a", NAMES, x=X)), str(npz(tmp_path / "b", NAMES[:20], y=Y[:20]))]
    with pytest.raises(BadInput, match="data: only models that run take it, got 'embedded' with stored rows; drop"):
        repsim_cli.compare(both, "embedded", measures=["cka"])
    with pytest.raises(BadInput, match="rows: only models that run take it, got 'words' with stored rows; drop it"):
        repsim_cli.compare(both, measures=["cka"], rows="words")
    with pytest.raises(BadInput, match="layers: only models that run take it, got 'x' with stored rows"):
        repsim_cli.compare(both, measures=["cka"], layers=["x"])
    for key, value in {"data.path": "a.csv", "extract.unit": "word", "extract.layers": [0]}.items():
        with pytest.raises(BadInput, match=f"{key}: only models that run take it, got .* with stored rows; drop"):
            repsim_cli.compare(both, measures=["cka"], settings={key: value})
    found = repsim_cli.compare(both, measures=["cka"])
    assert [text.split(":")[0] for text in found.warnings] == ["model.a", "20 rows are few"]
    found = repsim_cli.compare(both, measures=["cka"], settings={"extract.rows": 25})
    assert "extract.rows: 25 rows were requested, the data have 20; all are used" in found.warnings


def test_rows_without_a_partner_are_named_before_they_are_too_few():
    with pytest.raises(
        BadInput, match="model: models have different numbers of rows, got a: 1, b: 30; rows must be pa"
    ):
        repsim_cli.compare({"a": X[:1], "b": X})
    with pytest.raises(
        BadInput, match="extract.rows: cka_unbiased needs at least 4 rows, got 1; raise it, or give more da"
    ):
        repsim_cli.compare({"a": X[:1], "b": X[:1]})


def test_bad_folders(tmp_path):
    with pytest.raises(BadInput, match="path: not a folder of a data set, nor of files of vLLM, got "):
        precomputed(path=str(tmp_path))
    rows = datasets.Dataset.from_dict({"x": X.tolist()})
    datasets.DatasetDict({"train": rows, "test": rows}).save_to_disk(tmp_path / "two")
    with pytest.raises(BadInput, match="path: a folder of several splits, got train, test; name the folder of one"):
        precomputed(path=str(tmp_path / "two"))
    (tmp_path / "t.csv").write_text("text,key\na,1\nb,1\n")
    with pytest.raises(
        BadInput, match="id: examples have different ids, got '1' 2 times; number them, or drop data.id"
    ):
        registry.data.get("table").function(path=str(tmp_path / "t.csv"), id="key")


PROMPTS = [[5, 9, 2], [7, 1, 4, 4], [3, 8]]


def vllm(place, names, scale=1.0, layers=3):
    """Writes files as vLLM's example_hidden_states_connector does: one per request, whose name says nothing."""
    place.mkdir()
    for name, tokens in zip(names, PROMPTS, strict=True):
        states = torch.tensor(
            [[[scale * (100 * t + 10 * at + j) for j in range(4)] for at in range(layers)] for t in tokens]
        )
        content = {"hidden_states": states.bfloat16(), "token_ids": torch.tensor(tokens)}
        save_file(content, place / f"{name}.safetensors")
    return str(place)


def test_files_of_vllm(tmp_path):
    """Tokens of equal prompts are paired; ids of layers count the embeddings as 0."""
    one = precomputed(path=vllm(tmp_path / "one", "cab"), layer_ids=[0, 1, 6])
    other = precomputed(path=vllm(tmp_path / "other", "abc", scale=2.0), layer_ids=[0, 1, 6])
    assert (one.names, one.rows, one.widths) == (["embed", "resid_post@0", "resid_post@5"], 9, [4, 4, 4])
    assert [sentence.words for sentence in one.sentences] == [4, 2, 3]
    matched = other.put_in_order(one.sentences)
    for name in one.names:
        np.testing.assert_array_equal(matched.read(name, slice(0, 9)), 2 * one.read(name, slice(0, 9)))
    assert one.read("resid_post@5", slice(0, 1))[0].tolist() == torch.tensor([720.0, 721, 722, 723]).bfloat16().tolist()
    assert precomputed(path=str(tmp_path / "one"), layer_ids=[0, 1, 6], layers=["resid_post@0"]).names == [
        "resid_post@0"
    ]
    entries = {n: {"kind": "precomputed", "path": str(tmp_path / n), "layer_ids": [0, 1, 6]} for n in ("one", "other")}
    np.testing.assert_allclose(
        repsim_cli.compare(entries, measures=["cka"]).matrix("one", "other").values, 1, atol=1e-4
    )
    file = str(tmp_path / "one" / "a.safetensors")
    assert precomputed(path=file, layer_ids=[0, 1, 6]).rows == 4


@pytest.mark.parametrize(
    ("layer_ids", "message"),
    [
        (None, "layer_ids: files of vLLM do not say which layers they hold; give the eagle_aux_hidden_state_l"),
        ([0, 1], "layer_ids: one id for each layer of the files, got 2 for 3 in '.*a.safetensors'; give the eagle_aux"),
        ([1, 1, 2], "layer_ids: a layer is named twice, got resid_post@0, resid_post@0, resid_post@1; give the ids"),
    ],
)  # fmt: skip
def test_bad_layers_of_vllm(tmp_path, layer_ids, message):
    with pytest.raises(BadInput, match=message):
        precomputed(path=vllm(tmp_path / "one", "cab"), layer_ids=layer_ids)


def test_bad_files_of_vllm(tmp_path):
    place = vllm(tmp_path / "one", "cab")
    save_file({"hidden_states": torch.ones(2, 3, 5), "token_ids": torch.tensor([1, 2])}, tmp_path / "one/d.safetensors")
    with pytest.raises(
        BadInput, match=r"path: hidden states must be \(2 tokens, layers, 4\), got \(2, 3, 5\) in '.*d.saf"
    ):
        precomputed(path=place, layer_ids=[0, 1, 2])
    save_file({"token_ids": torch.tensor([1, 2])}, tmp_path / "one/d.safetensors")
    with pytest.raises(
        BadInput, match="path: not a file of hidden states of vLLM, got '.*d.safetensors' .*; write it again"
    ):
        precomputed(path=place, layer_ids=[0, 1, 2])


def test_a_model_named_by_its_file(tmp_path):
    from repsim_cli.config.presets import find_model_entry

    for write in (npz, parquet, folder):
        place = str(write(tmp_path / write.__name__, NAMES, x=X))
        assert find_model_entry(place) == {"kind": "precomputed", "path": place}
