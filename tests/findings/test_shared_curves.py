"""Claims over depth or training, on units that share any one curve: `benchmarks/levels_shared.py` has all draws."""

import numpy as np
import pytest
from helpers.nights import nightly
from levels_claims import CLAIMS
from levels_shared import FALSE_OF_A_WALK, SHARED, SLOW

from repsim_cli.findings.claims import FAILS, HOLDS

DRAWS, MOST = 40, 8  # a level of 5 % exceeds it once in 3000
# compare models, groups, sizes or tasks at one place, or means over all layers
WITHOUT_DEPTH = {
    "a_third_of_the_blocks_is_enough", "all_models_reach_full_accuracy", "between_group_distances_are_larger",
    "between_groups_cost_late", "clusters_are_the_groups", "crossing_costs_more_than_gelu_to_itself",
    "early_layers_cost_little", "feature_spaces_are_alike", "fine_tuning_delocalizes_the_top",
    "fine_tuning_parts_blocks", "fine_tuning_shifts_distances", "freezing_the_bottom_costs_less",
    "freezing_two_thirds_costs_little", "frozen_bottom_layers_cost_little", "gromov_wasserstein_is_clearest",
    "groups_alike_early", "groups_differ_late", "larger_models_converge_earlier",
    "larger_models_have_larger_gradient_rank", "larger_models_have_larger_parameter_rank",
    "layer_wise_distances_are_larger", "linear_probes_find_all_sums_in_model_l",
    "linear_probes_find_the_last_sum_in_model_e", "linear_probes_miss_inner_sums_in_model_e",
    "mlp_probes_find_all_sums_in_model_e", "neurons_are_block_diagonal", "neurons_differ_between_models",
    "neurons_match_better_than_rotated_bases", "one_code_serves_other_models", "one_percent_of_neurons_are_universal",
    "pythia_2_8b_has_a_small_head", "pythia_2_8b_stands_apart", "rank_keeps_falling_in_small_models",
    "same_family_is_closer", "seeds_differ_beyond_their_training", "seeds_share_few_latents",
    "single_heads_match_across_families", "solu_into_gelu_costs_more", "solu_stitches_better_to_itself",
    "sparser_models_differ_less", "training_changes_the_pattern", "training_separates_the_layers",
    "within_groups_cost_little",
}  # fmt: skip


def test_every_claim_over_depth_has_a_curve_that_all_share():
    assert sorted([*SHARED, *WITHOUT_DEPTH]) == sorted(CLAIMS)


@pytest.mark.parametrize("name", nightly(SHARED, *SLOW))
def test_a_shared_curve_seldom_makes_a_claim_hold(name):
    for make in SHARED[name].values():
        words = [CLAIMS[name](*make(rng)).verdict for rng in np.random.default_rng(1).spawn(DRAWS)]
        assert words.count(HOLDS) <= MOST
        if name not in FALSE_OF_A_WALK:
            assert words.count(FAILS) <= MOST
