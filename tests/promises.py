"""The first tier: what README and the guide promise, and the tests that hold each promise.

``pytest`` runs these and no others (tiers.py). A name is a file below tests/, or a file and a
function of it, or one case of that function. Tests of libraries that are not installed, and of
GPUs, are skipped with a reason.
"""

from __future__ import annotations

_CPU = "core/test_matmul_cpu.py"
_WGMMA = "emulator/test_emulator_wgmma.py"
_SIMT = "emulator/test_emulator_simt.py"
_TCGEN05 = "emulator/test_emulator_tcgen05_gemm.py"
_EPILOGUES = "emulator/test_emulator_epilogues.py"
_CALLS = "core/test_epilogue_calls.py"
_CANONICAL = "core/test_gemm_canonical.py"
_IMPORTS = "core/test_imports.py"
_COMPILES = "test_an_offered_configuration_compiles_to_tensor_core_code_without_spills"

PROMISES: dict[str, tuple[str, ...]] = {
    # -- arrays and calls --------------------------------------------------------------------------
    "matmul follows numpy.matmul: shapes, strides, stacks, empty extents": (
        f"{_CPU}::test_numpy_products_are_right_and_touch_nothing_else",
        f"{_CPU}::test_shapes_are_accepted_and_refused_as_numpy_does",
        f"{_CPU}::test_two_vectors_give_a_scalar_of_the_dtype",
        f"{_CPU}::test_an_empty_sum_is_zero_and_overwrites_poison",
        f"{_CPU}::test_threads_may_multiply_at_once",
        "core/test_numpy_suite.py",
    ),
    "in host memory it takes what numpy.matmul takes: types, axes, casting, overlap": (
        f"{_CPU}::test_sixteen_bit_inputs_are_summed_in_float32",
        f"{_CPU}::test_int8_accumulators_are_exact_beyond_what_float32_holds",
        "core/test_numpy_users.py::test_products_of_any_two_types_anywhere_in_memory_are_numpys",
        "core/test_numpy_users.py::test_out_that_shares_memory_with_an_input_gets_the_right_product",
        "core/test_numpy_users.py::test_axes_name_the_dimensions_of_the_matrices_as_in_numpy",
        "core/test_operands.py::test_overlap_of_two_arrays_is_told_exactly",
        "core/test_complex_epilogues.py::test_alpha_and_beta_may_be_complex",
    ),
    "DLPack, PyTorch and JAX arrays are multiplied in place, and give arrays of their own": (
        "core/test_dlpack.py::test_exported_arrays_are_multiplied_in_place_and_nothing_else_changes",
        "core/test_dlpack.py::test_jax_arrays_come_back_as_jax_arrays",
        f"{_CPU}::test_torch_products_on_the_host_are_right_and_touch_nothing_else",
        "core/test_known_tensors.py::test_known_calls_see_all_that_decides_a_product",
        "core/test_lost_memory.py::test_a_small_array_that_was_freed_is_refused_at_every_call",
    ),
    "CuPy and PyTorch on a GPU: one launch on the current stream, a workspace of the call": (
        "core/test_api_device.py",
        "core/test_graph_memory.py",
        "core/test_cuda_driver.py",
        "gpu/test_gpu_start_page.py",
    ),
    "bad input is a typed error before anything is launched, and says what would work": (
        f"{_CPU}::test_bad_input_is_refused_with_a_sentence_that_says_what_would_do",
        "core/test_refusals.py::test_an_option_of_a_wrong_kind_is_refused_in_words",
        "core/test_errors.py",
    ),
    "a known call is one look-up, and is told from every other call": (
        "core/test_keys.py",
        f"{_CPU}::test_later_calls_of_a_kind_plan_and_check_nothing_anew",
        "core/test_request.py::test_the_arguments_of_matmul_are_the_fields_of_a_request",
    ),
    "prepare: a product that is bound once": (
        "core/test_prepare.py::test_it_computes_what_matmul_does",
        "core/test_prepare.py::test_what_it_was_not_prepared_for_is_refused",
    ),
    "einsum, tensordot, vecdot, matvec, vecmat and inner are NumPy's": (
        "core/test_einsum.py::test_any_contraction_is_numpys",
        "core/test_einsum.py::test_tensordot_is_numpys",
        "core/test_einsum.py::test_products_of_vectors_are_numpys",
        "emulator/test_emulator_einsum.py",
    ),
    "bias, activation and functions of the accumulator are computed in the kernel": (
        f"{_CALLS}::test_epilogues_are_their_formulas",
        f"{_CALLS}::test_c_may_be_out_itself",
        f"{_CALLS}::test_gated_activations_halve_the_columns",
        f"{_CALLS}::test_int8_accumulators_stay_exact_where_the_result_is_int32",
        f"{_CALLS}::test_a_function_may_return_several_results",
        f"{_CALLS}::test_plans_of_gates_whose_result_lies_before_the_gate_are_refused",
        "core/test_epilogue.py::test_activations_are_their_formulas",
        "core/test_epilogue.py::test_nan_goes_through_every_activation",
        f"{_EPILOGUES}::test_every_way_of_computing_a_product_carries_out_its_epilogue",
        f"{_EPILOGUES}::test_c_in_place_is_added_once_where_tiles_overlap",
        f"{_EPILOGUES}::test_sums_of_columns_take_every_row_and_write_no_column_more",
        f"{_EPILOGUES}::test_whole_tiles_and_those_of_a_tail_have_the_same_epilogue",
        f"{_EPILOGUES}::test_bias_gradients_are_sums_over_whichever_dimensions_they_lack",
    ),
    "grouped_matmul is a layer of experts": (
        "core/test_grouped.py::test_each_group_is_the_product_of_its_own",
        "core/test_grouped.py::test_ends_in_host_memory_are_checked_at_every_call_before_anything_is_written",
        "emulator/test_emulator_grouped.py::test_groups_on_hopper",
        "emulator/test_emulator_grouped.py::test_groups_on_blackwell",
    ),
    "float8, int8 and their scales; MXFP8 and NVFP4; quantised results": (
        "core/test_scales.py::test_accumulators_are_multiplied_before_they_are_rounded",
        "core/test_line_scales.py::test_accumulators_are_multiplied_by_the_scales_of_their_row_and_column",
        "core/test_fine_scales.py::test_blocks_are_multiplied_by_their_scales",
        "core/test_block_scales.py",
        "core/test_quantize.py::test_every_size_type_and_stride_follows_the_rule",
        "core/test_quantized_results.py::test_a_result_is_quantised_as_one_of_float32_would_be",
        "emulator/test_emulator_quantize.py::test_kernels_give_the_bits_of_the_rule",
        "emulator/test_emulator_block_scales.py::test_k_may_end_anywhere_in_a_k_tile",
        "emulator/test_emulator_fine_scales.py::test_every_kind_of_scales_and_of_sizes",
    ),
    "batch_invariant and deterministic products keep their bits": (
        "core/test_batch_invariant.py::test_every_m_and_every_batch_have_one_configuration",
        "core/test_batch_invariant.py::test_rows_are_bitwise_the_same_whatever_m_is",
        "core/test_batch_invariant.py::test_the_host_and_plans_without_the_promise_are_refused",
        f"{_WGMMA}::test_columns_of_a_neighbours_tile_keep_its_bits",
    ),
    "on a GPU integers, booleans, complex numbers and mixed types are NumPy's": (
        "emulator/test_emulator_types.py::test_any_types_and_layouts_are_numpys",
        "emulator/test_emulator_complex.py::test_complex_products_are_one_launch_and_numpys",
    ),
    # -- backends ----------------------------------------------------------------------------------
    "cute_simt: CUDA cores, any strides": (
        f"{_SIMT}::test_layouts_dtypes_and_offsets_at_awkward_sizes",
        f"{_SIMT}::test_configurations_rasters_and_orders_of_warps_give_the_product",
        f"{_SIMT}::test_only_the_tiles_of_the_last_wave_have_parts",
        f"{_SIMT}::test_few_rows_of_either_operand_give_the_product",
        "emulator/test_emulator_simt_cluster.py::test_a_cluster_adds_up_the_parts_of_its_tiles",
        "emulator/test_emulator_warp_specialized.py::test_a_part_of_k_may_be_empty",
        "backends/test_simt_compile.py::test_an_offered_configuration_compiles_without_spills",
        "backends/test_simt_geometry.py::test_the_accumulators_of_all_lanes_cover_the_tile_exactly_once",
    ),
    "cute_wgmma: Hopper's tensor cores, any strides": (
        f"{_WGMMA}::test_types_and_layouts_within_their_error_bounds",
        f"{_WGMMA}::test_every_way_of_sharing_and_storing",
        f"{_WGMMA}::test_stages_are_handed_back_behind_the_products_that_read_them",
        f"{_WGMMA}::test_slices_of_k_wait_for_what_is_late_in_every_round",
        f"{_WGMMA}::test_tiles_that_begin_elsewhere_along_k_take_every_k_tile_once",
        f"{_WGMMA}::test_sums_of_split_numbers_are_promoted_whatever_the_number_of_k_tiles",
        f"{_WGMMA}::test_panels_feed_tiles_of_any_eights",
        f"{_WGMMA}::test_operands_at_odd_addresses_are_repacked",
        f"{_WGMMA}::test_direct_stores_leave_what_is_behind_a_row",
        f"{_WGMMA}::test_rows_of_d_begin_at_any_element",
        "backends/test_wgmma.py::test_every_offered_configuration_is_legal_and_fills_shared_memory",
        "backends/test_wgmma.py::test_an_illegal_configuration_is_refused_with_its_reason",
        f"backends/test_wgmma.py::{_COMPILES}",
    ),
    "cute_tcgen05: Blackwell's tensor cores": (
        f"{_TCGEN05}::test_types_and_layouts_within_their_error_bounds",
        f"{_TCGEN05}::test_every_way_of_sharing",
        "backends/test_tcgen05.py::test_every_offered_configuration_is_legal_and_fills_shared_memory",
    ),
    "cutile: tensor cores from sm_80 on": (
        "backends/test_cutile_kernel.py::test_blocks_compute_the_product_and_write_nothing_else",
        "backends/test_cutile_epilogues.py",
        "backends/test_cutile_grouped.py::test_each_row_column_or_k_is_in_its_group_and_nothing_else_is_written",
        "backends/test_cutile_grouped.py::test_whatever_offsets_are_nothing_outside_of_the_arrays_is_touched",
        "backends/test_cutile_launch.py::test_a_launch_passes_each_argument_in_its_own_bytes",
        f"backends/test_cutile_compile.py::{_COMPILES}",
    ),
    "a package can bring a backend of its own": ("backends/test_add_a_backend.py",),
    # -- the planner -------------------------------------------------------------------------------
    "the planner picks the least estimate and says why": (
        "core/test_golden_plans.py",
        "core/test_plans.py::test_a_plan_comes_back_from_json_and_the_same_inputs_give_the_same_plan",
        "core/test_plans.py::test_a_plan_for_another_call_is_refused_with_what_differs",
        "core/test_backend.py",
        "core/test_old_plans.py",
        f"{_CANONICAL}",
        "core/test_size_classes.py::test_lines_of_a_class_end_within_a_sector_where_the_products_do",
        "core/test_size_classes.py::test_where_m_must_not_matter_n_is_its_own",
        "backends/test_cost_model.py::test_no_estimate_is_under_the_roofline",
    ),
    "a backend that fails is left out with a warning, and the next best computes": (
        "core/test_fallback.py",
    ),
    "autotune, sweep and calibrate measure, check and keep": (
        "core/test_tuning.py",
        "core/test_autotuning.py::test_the_first_call_measures_and_later_ones_use_what_it_found",
        "core/test_tuning_bounds.py::test_one_element_that_is_wrong_lies_outside",
        "core/test_sweep.py::test_a_sweep_checks_and_times_each_plan_beside_the_baseline",
        "core/test_calibration.py::test_plans_of_the_card_use_it_and_say_so",
    ),
    # -- the cache ---------------------------------------------------------------------------------
    "kernels are compiled once, kept on disk, and trusted only where they are safe": (
        "core/test_cache.py",
        "core/test_cache_trust.py",
        "core/test_cache_damage.py::test_a_damaged_entry_is_reported_set_aside_and_compiled_anew",
        "core/test_cache_damage.py::test_what_was_set_aside_long_ago_is_removed_whatever_the_clock",
    ),
    "bundles run where nothing compiles": (
        "core/test_cache_bundles.py::test_a_bundle_serves_a_machine_that_compiles_nothing",
        "core/test_run_only.py",
        "core/test_warmup.py::test_what_was_recorded_is_compiled_again_and_nothing_else",
    ),
    # -- what a user sees --------------------------------------------------------------------------
    "the command line": (
        "core/test_cli.py",
        "core/test_demo.py::test_with_a_device_every_backend_is_checked_and_set_beside_cublas",
        "core/test_report.py::test_the_command_writes_a_page_or_prints_json",
    ),
    "environment variables are what README says": (
        "core/test_environment.py::test_one_table_has_all_variables_that_the_code_reads",
        "core/test_environment.py::test_the_named_backend_stands_in_for_auto_and_an_argument_wins",
    ),
    "pages and examples run and print what they show": (
        "core/test_readme.py",
        "core/test_docs.py",
        "core/test_site.py::test_the_python_of_a_page_runs",
        "core/test_site.py::test_the_start_page_prints_what_it_shows",
        "core/test_site.py::test_an_example_prints_what_its_page_shows",
        "core/test_site.py::test_every_public_name_has_its_place_in_the_reference",
    ),
    "import unigemm is quick and brings no kernel language; rooms import downwards": (
        f"{_IMPORTS}::test_no_import_of_the_core_runs_upwards",
        f"{_IMPORTS}::test_no_imports_run_in_a_circle",
        f"{_IMPORTS}::test_importing_unigemm_brings_nothing_along",
        f"{_IMPORTS}::test_every_public_name_exists",
        "core/test_packaging.py::test_the_package_list_is_the_tree",
    ),
    "the emulator finds what hardware is silent about": (
        "emulator/test_emulator_faults.py",
        "emulator/test_emulator_races.py",
        "emulator/test_emulator_probes.py::test_a_probe_gives_what_the_device_gave",
        "emulator/test_emulator_probes.py::test_products_of_the_tensor_cores_are_right_and_those_of_the_device",
    ),
    "every planted fault fits the code, and names tests that exist": ("core/test_mutants.py",),
    "the commands of bench hang together": ("bench/test_commands.py",),
    # -- frameworks (skipped where they are not installed) -----------------------------------------
    "unigemm.torch: gradients, compilation, transforms, experts, scales": (
        "frameworks/test_torch_operators.py::test_results_on_meta_have_the_types_of_real_ones_for_every_pair",
        "frameworks/test_torch_operators.py::test_gradients_of_complex_products_and_stacks_are_those_of_finite_differences",
        "frameworks/test_torch_operators.py::test_matmul_and_its_gradients_are_torchs_for_every_rank",
        "frameworks/test_torch_operators.py::test_linear_layers_are_replaced_in_place",
        "frameworks/test_torch_use.py::test_a_small_llama_agrees_with_torchs",
        "frameworks/test_torch_grouped.py::test_results_and_gradients_are_those_of_pytorchs_function",
    ),
    "unigemm.jax: gradients, vmap, ragged products": (
        "frameworks/test_jax_products.py::test_products_of_every_rank_are_jaxs_and_their_gradients",
        "frameworks/test_jax_grouped.py::test_results_and_types_are_jaxs",
    ),
}

#: Of these functions the first tier draws so many cases (sampling.py); `--thorough` takes all.
SAMPLES: dict[str, int] = {
    f"backends/test_cutile_compile.py::{_COMPILES}": 4,
    "backends/test_simt_compile.py::test_an_offered_configuration_compiles_without_spills": 2,
    f"backends/test_wgmma.py::{_COMPILES}": 3,
    "backends/test_wgmma.py::test_every_offered_configuration_is_legal_and_fills_shared_memory": 12,
    "core/test_batch_invariant.py::test_rows_are_bitwise_the_same_whatever_m_is": 5,
    "emulator/test_emulator_block_scales.py::test_k_may_end_anywhere_in_a_k_tile": 1,
    "emulator/test_emulator_complex.py::test_complex_products_are_one_launch_and_numpys": 4,
    "emulator/test_emulator_faults.py::test_a_loop_that_waits_for_what_nobody_writes_ends": 1,
    "emulator/test_emulator_fine_scales.py::test_every_kind_of_scales_and_of_sizes": 1,
    "emulator/test_emulator_grouped.py::test_groups_on_blackwell": 1,
    "emulator/test_emulator_grouped.py::test_groups_on_hopper": 3,
    "emulator/test_emulator_quantize.py::test_kernels_give_the_bits_of_the_rule": 3,
    "emulator/test_emulator_simt_cluster.py::test_a_cluster_adds_up_the_parts_of_its_tiles": 2,
    f"{_SIMT}::test_configurations_rasters_and_orders_of_warps_give_the_product": 1,
    f"{_SIMT}::test_few_rows_of_either_operand_give_the_product": 1,
    f"{_SIMT}::test_layouts_dtypes_and_offsets_at_awkward_sizes": 3,
    f"{_SIMT}::test_only_the_tiles_of_the_last_wave_have_parts": 1,
    f"{_TCGEN05}::test_types_and_layouts_within_their_error_bounds": 2,
    f"{_WGMMA}::test_panels_feed_tiles_of_any_eights": 1,
    f"{_WGMMA}::test_rows_of_d_begin_at_any_element": 1,
    f"{_WGMMA}::test_types_and_layouts_within_their_error_bounds": 3,
}
