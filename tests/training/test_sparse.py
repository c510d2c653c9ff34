"""Dynamic sparse training: what is penalised, what is removed, that the target is met and what is removed stays zero."""

import pytest
import torch

from repsim_cli.base.errors import BadInput
from repsim_cli.config.presets import read_table_entries
from repsim_cli.models.configs import inline_config
from repsim_cli.models.library import import_transformers
from repsim_cli.training.sparse import (
    BlockUnits,
    SparseTraining,
    Sparsity,
    compute_achieved,
    compute_head_similarities,
    compute_penalty_weights,
    compute_removal_progress,
    count_units_to_remove,
    find_dominating,
    find_prunable_blocks,
    measure_connectivity,
    order_heads,
    order_neurons,
    shrink_heads,
    shrink_neurons,
)

SIZES = {
    "vocab_size": 32,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "intermediate_size": 96,
    "max_position_embeddings": 34,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.2,
}


DISTIL = {"vocab_size": 32, "dim": 24, "n_layers": 2, "n_heads": 6, "hidden_dim": 96}


def encoder(kind="bert"):
    torch.manual_seed(0)
    config = inline_config({"model_type": kind, **(DISTIL if kind == "distilbert" else SIZES)})
    return import_transformers().AutoModelForSequenceClassification.from_config(config).eval()


def trained(model, sparsity, steps, stop=None, training=None, start=0):
    """A training with gradients of random examples; (the training, the optimiser)."""
    training = training or SparseTraining(model.config, model.base_model, sparsity, steps)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(start, stop or steps):
        draw = torch.Generator().manual_seed(step)
        ids = torch.randint(5, 32, (4, 8), generator=draw)
        loss = torch.nn.functional.cross_entropy(model(ids).logits, torch.randint(2, (4,), generator=draw))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        training.update(step + 1)
    return training


@pytest.mark.parametrize("kind", ["bert", "roberta", "electra", "distilbert"])
@pytest.mark.parametrize(("target", "heads"), [(0.25, 1), (0.7, 4), (0.95, 6)])
def test_the_target_is_met_within_a_neuron_in_every_block(kind, target, heads):
    model = encoder(kind)
    trained(model, Sparsity(target=target), 12)
    whole, by_block = compute_achieved(find_prunable_blocks(model.config, model.base_model))
    neuron = 2 * 24 / (4 * 24 * 24 + 2 * 24 * 96)
    for metrics in (whole, *by_block):
        assert target <= metrics["sparsity"] < target + neuron, metrics
    assert whole["heads_removed"] == pytest.approx(heads / 6)  # at 0.95 all neurons and 5 heads would not be enough


def test_what_is_removed_grows_with_the_target_and_during_the_training():
    block = find_prunable_blocks(encoder().config, encoder().base_model)[0]
    for target in (0.0, 0.1, 0.25, 0.5, 0.7, 0.95, 0.99, 0.999):
        heads, neurons = count_units_to_remove(block, target)
        zero = heads * block.heads.size + neurons * block.neurons.size
        wanted = target * (6 * block.heads.size + 96 * block.neurons.size)
        assert wanted <= zero < wanted + block.neurons.size
        assert (heads, neurons) <= (6, 96)
    heads = [count_units_to_remove(block, target)[0] for target in torch.linspace(0, 0.99, 40).tolist()]
    assert heads == sorted(heads)
    assert count_units_to_remove(block, 0.0) == (0, 0)
    grown = [compute_removal_progress(step, 10) for step in range(13)]
    assert grown == sorted(grown)
    assert grown[0] == 0
    assert grown[5] == pytest.approx(0.875)
    assert grown[10:] == [1, 1, 1]


def test_removed_groups_are_whole_and_stay_zero():
    model = encoder()
    training = trained(model, Sparsity(target=0.7), 10, stop=7)
    before = {name: removed.clone() for name, removed in training.removed.items()}
    trained(model, Sparsity(target=0.7), 10, training=training, start=7)
    assert all(torch.equal(removed, before[name]) for name, removed in training.removed.items())
    layer, removed = model.base_model.encoder.layer[1], training.removed
    for name in ("query", "key", "value"):
        part = getattr(layer.attention.self, name)
        rows = part.weight.view(6, -1).abs().sum(1) + part.bias.view(6, -1).abs().sum(1)
        assert torch.equal(rows == 0, removed["heads.1"])
    columns = layer.attention.output.dense.weight.view(24, 6, 4).abs().sum((0, 2))
    assert torch.equal(columns == 0, removed["heads.1"])
    assert torch.equal(layer.intermediate.dense.weight.abs().sum(1) == 0, removed["neurons.1"])
    assert torch.equal(layer.output.dense.weight.abs().sum(0) == 0, removed["neurons.1"])
    assert not layer.intermediate.dense.bias[removed["neurons.1"]].any()
    left = layer.intermediate.dense.weight[~removed["neurons.1"]]
    assert (left != 0).all()  # what the penalty had brought to zero has been trained since


def test_a_group_that_is_already_zero_goes_first_and_the_function_stays():
    model = encoder()
    block = find_prunable_blocks(model.config, model.base_model)[0]
    block.heads.clear(torch.tensor([False, True, False, False, True, False]))
    block.neurons.clear(torch.arange(96) % 3 == 1)
    ids = torch.arange(5, 15)[None]
    with torch.no_grad():
        before = model(ids).logits
    assert sorted(order_heads(block.heads, 0.5)[:2].tolist()) == [1, 4]
    assert sorted(order_neurons(block.neurons)[:32].tolist()) == list(range(1, 96, 3))
    training = SparseTraining(model.config, model.base_model, Sparsity(target=0.25, penalty=0.0), 10)
    training.blocks = training.blocks[:1]
    assert count_units_to_remove(block, 0.25)[0] <= 2
    assert count_units_to_remove(block, 0.25)[1] <= 32
    training.update(7)
    assert int(training.removed["heads.0"].sum()) == count_units_to_remove(block, 0.25)[0]
    with torch.no_grad():
        assert torch.equal(model(ids).logits, before)


def test_a_target_of_zero_changes_nothing():
    plain, watched = encoder(), encoder()
    trained(watched, Sparsity(target=0.0), 5)
    optimiser = torch.optim.AdamW(plain.parameters(), lr=1e-3)
    for step in range(5):
        draw = torch.Generator().manual_seed(step)
        ids = torch.randint(5, 32, (4, 8), generator=draw)
        loss = torch.nn.functional.cross_entropy(plain(ids).logits, torch.randint(2, (4,), generator=draw))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    other = watched.state_dict()
    assert all(torch.equal(weights, other[name]) for name, weights in plain.state_dict().items())


def neurons(first, last):
    return BlockUnits([torch.tensor(first), torch.tensor(last)], [])


def test_connected_neurons_are_penalised_less():
    """The penalty by hand: 3 neurons of 4 weights, the mean magnitude is 24 / 12 = 2, and 3, 1 and 2 weights are above
    it."""
    some = neurons([[3.0, -3.0], [-4.0, 1.0], [2.5, -1.5]], [[3.0, 0.0], [1.0, 1.0], [2.5, 1.5]])
    assert measure_connectivity(some).tolist() == [0.75, 0.25, 0.5]
    assert compute_penalty_weights(measure_connectivity(some)).tolist() == pytest.approx([2 / 3, 2.0, 1.0])
    shrink_neurons(some, 0.25)  # by 0.25 * 2 times the penalty: 1/3, 1, 1/2
    expected = [[3 - 1 / 3, -3 + 1 / 3], [-3.0, 0.0], [2.0, -1.0]]
    assert some.weights[0].flatten().tolist() == pytest.approx([x for row in expected for x in row])
    assert some.weights[1].flatten().tolist() == pytest.approx([3 - 1 / 3, 0.0, 0.0, 0.0, 2.0, 1.0])
    assert order_neurons(some).tolist() == [1, 2, 0]


def test_removed_and_unconnected_neurons():
    """A removed neuron counts neither in the mean magnitude nor in the mean connectivity; one without any connection is
    removed by the penalty."""
    some = neurons([[0.0], [4.0], [0.1]], [[0.0], [4.0], [0.1]])
    assert measure_connectivity(some).tolist() == [0.0, 1.0, 0.0]
    shrink_neurons(some, 0.1)
    assert some.weights[0].flatten().tolist() == pytest.approx([0.0, 4 - 0.1 * 2.05, 0.0])
    still = neurons([[0.0], [4.0], [0.1]], [[0.0], [4.0], [0.1]])
    shrink_neurons(still, 0.0)
    assert still.weights[0].flatten().tolist() == pytest.approx([0.0, 4.0, 0.1])


def test_the_norm_of_heads_shrinks_by_the_same():
    heads = BlockUnits([torch.tensor([[3.0, 0.0], [0.0, 0.0], [0.3, 0.0]]), torch.tensor([[4.0], [0.0], [0.4]])], [])
    shrink_heads(heads, 0.25)  # the mean norm of the remaining heads is 2.75
    assert heads.norms().tolist() == pytest.approx([5 - 0.6875, 0.0, 0.0])


def test_heads_are_alike_whatever_their_basis():
    """Head 1 is head 0 in another basis of its features; head 2 is unrelated."""
    torch.manual_seed(0)
    value, query, key, output = (torch.randn(3, 4, 24) for _ in range(4))
    turn, _ = torch.linalg.qr(torch.randn(4, 4))
    for part in (value, query, key, output):
        part[1] = turn @ part[0]
    found = compute_head_similarities(BlockUnits([value, query, key, output], []))
    assert found.diagonal().tolist() == pytest.approx([1, 1, 1])
    assert float(found[0, 1]) == pytest.approx(1, abs=1e-5)
    maps = [query[i].T @ key[i] for i in (0, 2)], [output[i].T @ value[i] for i in (0, 2)]
    cosines = [torch.nn.functional.cosine_similarity(a.flatten(), b.flatten(), dim=0) for a, b in maps]
    assert float(found[0, 2]) == pytest.approx(float(sum(cosines)) / 2, abs=1e-5)


def test_a_dominating_set_of_a_star_is_its_centre():
    star = torch.eye(5, dtype=torch.bool)
    star[2, [0, 1, 3]] = star[[0, 1, 3], 2] = True
    assert find_dominating(star, torch.tensor([9.0, 8.0, 1.0, 7.0, 2.0])) == [2, 4]
    assert find_dominating(star, torch.tensor([9.0, 8.0, 0.0, 7.0, 2.0])) == [0, 1, 3, 4]  # the centre is removed
    assert find_dominating(torch.eye(2, dtype=torch.bool), torch.tensor([1.0, 2.0])) == [1, 0]


def test_heads_like_others_are_removed_first():
    torch.manual_seed(0)
    parts = [torch.randn(3, 4, 24) for _ in range(4)]
    for part in parts:
        part[1] = part[0] * 2
        part[2] *= 0.5
    heads = BlockUnits(parts, [])
    assert order_heads(heads, 0.5).tolist() == [0, 2, 1]  # 0 is like 1, which is larger; 2 is the smallest
    assert order_heads(heads, 1.0).tolist() == [2, 0, 1]


def test_a_training_resumes_with_what_was_removed():
    model = encoder()
    training = trained(model, Sparsity(target=0.7), 10, stop=5)
    again = SparseTraining(model.config, model.base_model, Sparsity(target=0.7), 10)
    again.load_state_dict({name: x.clone() for name, x in training.state_dict().items()})
    assert all(torch.equal(again.removed[name], x) for name, x in training.removed.items())
    assert any(x.any() for x in again.removed.values())


@pytest.mark.parametrize("kind", ["albert", "xlnet", "gpt2", "modernbert", "t5"])
def test_other_architectures_are_refused(kind):
    with torch.device("meta"):
        config = inline_config({"model_type": kind})
        backbone = import_transformers().AutoModel.from_config(config)
    message = f"recipe.sparsity: the blocks are not of six linear maps .*, got model_type '{kind}'; drop it, or use"
    with pytest.raises(BadInput, match=message):
        find_prunable_blocks(config, backbone)


@pytest.mark.parametrize(
    ("dense", "sparse"),
    [
        ("bert_yelp_gao", "bert_yelp_gao_sparse_{}"),
        ("bert_sst2_gao", "bert_sst2_gao_sparse_{}"),
        ("tiny_dense", "tiny_sparse_{}"),
    ],
)
def test_dense_and_sparse_entries_differ_in_the_target_alone(dense, sparse):
    known = read_table_entries("model")
    for percent in (25, 70, 95):
        entry = known[sparse.format(percent)]
        assert entry["recipe"].pop("sparsity") == {"target": percent / 100}
        assert entry == known[dense]
