"""Mutants of the host: keys, checks, plans, the cache, layouts, epilogues, frameworks."""

from __future__ import annotations

from planting import Mutant

_KEYS = ("tests/core/test_keys.py",)

HOST_MUTANTS = (
    # -- keys --------------------------------------------------------------------------------------
    Mutant(
        "key-slice-k",
        "backends/common/kernel_key.py",
        '"warps": [*config.warps, config.slice_k],',
        '"warps": [*config.warps],',
        "one kernel for two configurations",
        _KEYS,
    ),
    Mutant(
        "key-cluster-k",
        "backends/common/kernel_key.py",
        '"cluster": [*config.cluster, config.cluster_k],',
        '"cluster": [*config.cluster],',
        "one kernel for two configurations",
        _KEYS,
    ),
    Mutant(
        "key-producers",
        "backends/common/kernel_key.py",
        '        "producers": config.producers,\n',
        "",
        "one kernel for two configurations",
        _KEYS,
    ),
    Mutant(
        "key-scaled",
        "backends/common/kernel_key.py",
        '        "scaled": problem.scaled,\n',
        "",
        "one kernel for products with and without scales",
        _KEYS,
    ),
    Mutant(
        "key-block",
        "backends/common/kernel_key.py",
        '"dtype": blocks.dtype.value, "block": blocks.block, "a": blocks.a, "b": blocks.b',
        '"dtype": blocks.dtype.value, "block": blocks.block, "a": blocks.a',
        "one kernel for scales in two orders",
        _KEYS,
    ),
    Mutant(
        "key-invariant-split",
        "backends/common/kernel_key.py",
        'config.split_k > 1 and ("in turn" if problem.batch_invariant else True)',
        "config.split_k > 1",
        "rows differ by how many there are, though batch_invariant=True",
        (*_KEYS, "tests/core/test_batch_invariant.py"),
    ),
    # -- layouts -----------------------------------------------------------------------------------
    Mutant(
        "alignment-of-stacks",
        "unigemm/problem/classes.py",
        "alignment = _alignment(layout.alignment, size, [step, *batch_steps])",
        "alignment = _alignment(layout.alignment, size, [step])",
        "vectors of C or a bias are read at addresses that are no multiple of their size",
        (
            "tests/core/test_gemm_canonical.py::test_vectors_of_an_auxiliary_array_are_aligned_in_every_line_and_product",
        ),
    ),
    Mutant(
        "alignment-of-d",
        "unigemm/problem/classes.py",
        "            steps.append(shape[unit])\n",
        "            pass\n",
        "TMA writes zeros behind the last column of D",
        ("tests/core/test_gemm_canonical.py::test_alignment_and_majorness_are_what_they_claim",),
    ),
    Mutant(
        "repeated-rows",
        "unigemm/problem/classes.py",
        "return min(steps) >= 0 and (steps[0] > 0 or rows == 1)",
        "return min(steps) >= 0",
        "TMA is given rows that repeat",
        ("tests/core/test_gemm_canonical.py::test_rows_that_go_back_or_repeat_are_no_tma_source",),
    ),
    Mutant(
        "backwards-lines",
        "unigemm/problem/classes.py",
        '        unit = "strided" if min(strides) < 0 else unit\n',
        "",
        "an epilogue's array that runs backwards is read forwards",
        (
            "tests/core/test_gemm_canonical.py::test_vectors_of_an_auxiliary_array_are_aligned_in_every_line_and_product",
        ),
    ),
    Mutant(
        "fold-beside",
        "unigemm/problem/canonical.py",
        "(sa == m * a[0] and all(sd == m * d[0] for sd, d in zip(sds, ds, strict=True)))",
        "(sa == m * a[0] and sds[0] == m * ds[0][0])",
        "a bias of each product of a stack is taken for all of them",
        (
            "tests/core/test_epilogue_calls.py::test_epilogues_are_their_formulas",
            "tests/core/test_epilogue_calls.py",
        ),
    ),
    Mutant(
        "fold-shared",
        "unigemm/problem/canonical.py",
        "if merged and steps == [inner * step for step in before]:",
        "if merged and steps[:3] == [inner * step for step in before][:3]:",
        "an epilogue's array is read at the indices of another product of the stack",
        (
            "tests/core/test_epilogue_calls.py::test_epilogues_are_their_formulas",
            "tests/core/test_epilogue_calls.py",
        ),
    ),
    Mutant(
        "overlap-touching",
        "unigemm/problem/overlap.py",
        "if x_low == x_high or y_low == y_high or x_high <= y_low or y_high <= x_low:",
        "if x_low == x_high or y_low == y_high or x_high <= y_low + 1 or y_high <= x_low:",
        "an out that shares one byte with an operand is written while it is read",
        (
            "tests/core/test_operands.py::test_overlap_of_two_arrays_is_told_exactly",
            "tests/core/test_epilogue_calls.py",
        ),
    ),
    Mutant(
        "broadcast-ones",
        "unigemm/problem/canonical.py",
        "        out.append(y if x == 1 else x)\n",
        "        out.append(max(x, y))\n",
        "an empty stack by a stack of one gives a stack of one",
        ("tests/core/test_matmul_cpu.py::test_shapes_are_accepted_and_refused_as_numpy_does",),
    ),
    Mutant(
        "scale-tiles",
        "unigemm/problem/block_scales.py",
        "of_row = row // TILE_ROWS * across + inside % 32 * 16 + inside // 32 * 4",
        "of_row = row // TILE_ROWS * across + inside % 32 * 16 + inside // 32",
        "scales of blocks are read at the addresses of others",
        ("tests/core/test_block_scales.py",),
    ),
    # -- plans -------------------------------------------------------------------------------------
    Mutant(
        "class-of-sizes",
        "unigemm/planning/size_buckets.py",
        'along_m = along_n if "m" in (problem.a.major, problem.d.major) else 1',
        "along_m = 1",
        "rows of D in columns lose the width of their stores",
        (
            "tests/core/test_size_classes.py::test_lines_of_a_class_end_within_a_sector_where_the_products_do",
        ),
    ),
    Mutant(
        "larger-than-planned",
        "unigemm/planning/size_buckets.py",
        "if extents.m > plan.extents.m or extents.n > plan.extents.n:",
        "if extents.m > plan.extents.m:",
        "a plan is used for more columns than its workspace has",
        ("tests/core/test_backend.py::test_a_backend_shares_plans_only_if_it_says_so",),
    ),
    Mutant(
        "batch-invariant-columns",
        "unigemm/planning/size_buckets.py",
        "    n_stays = problem.batch_invariant\n",
        "    n_stays = False\n",
        "N of batch-invariant products is planned as another",
        ("tests/core/test_size_classes.py::test_where_m_must_not_matter_n_is_its_own",),
    ),
    Mutant(
        "planner-bound",
        "unigemm/planning/planner.py",
        "if _ROUNDED * least_us >= limit:",
        "if least_us / _ROUNDED**40 >= limit:",
        "a backend that would win is left out by its lower bound",
        (
            "tests/core/test_backend.py::test_a_backend_that_may_be_a_little_quicker_is_asked_and_wins",
        ),
    ),
    Mutant(
        "workspace-of-parts",
        "backends/common/workspace.py",
        "    return split_k * extents.batch * _padded(lines, line * size)",
        "    return (split_k - 1) * extents.batch * _padded(lines, line * size)",
        "partial sums are written behind the workspace",
        (
            "tests/emulator/test_emulator_simt.py::test_configurations_rasters_and_orders_of_warps_give_the_product",
        ),
    ),
    Mutant(
        "stages-of-slices",
        "backends/cute_wgmma/legality.py",
        "    if config.stages % slices:\n",
        "    if False:\n",
        "a slice of K takes its last k_tile for the next: a race seen on an H100",
        (
            "tests/backends/test_wgmma.py::test_an_illegal_configuration_is_refused_with_its_reason",
            "tests/emulator/test_emulator_wgmma.py::test_slices_of_k_wait_for_what_is_late_in_every_round",
        ),
    ),
    Mutant(
        "exchange-beside-stages",
        "backends/cute_wgmma/legality.py",
        "if _exchanged_bytes(config, geo) > geo.smem_bytes - BARRIER_BYTES:",
        "if False:",
        "partial sums are exchanged over the barriers",
        (
            "tests/backends/test_wgmma.py::test_every_offered_configuration_is_legal_and_fills_shared_memory",
            "tests/backends/test_wgmma.py",
        ),
    ),
    # -- cache -------------------------------------------------------------------------------------
    Mutant(
        "trust-group",
        "unigemm/cache/trust.py",
        '    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):\n        return f"can be written',
        '    if status.st_mode & stat.S_IWOTH:\n        return f"can be written',
        "kernels are loaded from files that a group may write",
        ("tests/core/test_cache_trust.py",),
    ),
    Mutant(
        "trust-links",
        "unigemm/cache/trust.py",
        '        if status.st_uid not in owners:\n            return f"is reached through',
        '        if False:\n            return f"is reached through',
        "kernels are loaded through another user's link",
        ("tests/core/test_cache_trust.py",),
    ),
    Mutant(
        "trust-limit",
        "unigemm/cache/trust.py",
        "            data = file.read(limit + 1)\n",
        "            data = file.read(limit)\n",
        "a file that is too long is cut and believed",
        ("tests/core/test_cache_trust.py", "tests/core/test_tuning_bounds.py"),
    ),
    Mutant(
        "publish-over",
        "unigemm/cache/store.py",
        '        if os.path.lexists(final):\n            raise FileExistsError(f"{final} exists already")\n',
        "",
        "none: it tells sooner what the rename would say",
        equivalent="a folder is renamed to no path that holds more than an empty folder",
    ),
    Mutant(
        "clock-set-back",
        "unigemm/cache/store.py",
        "            if abs(now - _modified(path)) > _QUARANTINE_S:",
        "            if now - _modified(path) > _QUARANTINE_S:",
        "what was set aside while the clock was ahead is never removed",
        (
            "tests/core/test_cache_damage.py::test_what_was_set_aside_long_ago_is_removed_whatever_the_clock",
        ),
    ),
    Mutant(
        "look-twice",
        "unigemm/cache/layers.py",
        "            found = self._look_up(key, alone=True)\n            if found is not None:\n"
        "                self._memo[digest] = found[0]\n                return found\n"
        "            with watch() as took:",
        "            with watch() as took:",
        "a kernel that another process has just compiled is compiled again",
        ("tests/core/test_cache.py",),
    ),
    # -- epilogues ---------------------------------------------------------------------------------
    Mutant(
        "rounded-nan",
        "backends/numpy/epilogue.py",
        "np.nan_to_num(values, nan=0.0, posinf=np.inf, neginf=-np.inf)",
        "np.nan_to_num(values, nan=1.0, posinf=np.inf, neginf=-np.inf)",
        "NaN becomes 1 in integers",
        (
            "tests/core/test_epilogue_calls.py",
            "tests/core/test_epilogue_products.py",
            "tests/core/test_epilogue.py",
        ),
    ),
    Mutant(
        "arithmetic-of-integers",
        "unigemm/problem/epilogue.py",
        "wide = accumulator is DType.FLOAT64 or accumulator is result is DType.INT32",
        "wide = accumulator is DType.FLOAT64",
        "accumulated integers above 2**24 lose their last bits in an epilogue",
        (
            "tests/core/test_epilogue_calls.py::test_int8_accumulators_stay_exact_where_the_result_is_int32",
            "tests/core/test_epilogue.py",
        ),
    ),
    Mutant(
        "gate-halves",
        "backends/numpy/epilogue.py",
        "        if halves:\n            middle",
        "        if not halves:\n            middle",
        "gates are paired with other columns",
        ("tests/core/test_epilogue_calls.py::test_gated_activations_halve_the_columns",),
    ),
    Mutant(
        "flaw-of-gates",
        "unigemm/problem/epilogue.py",
        'if epilogue.gate and sides[epilogue.result] == "whole":',
        "if False:",
        "a plan from outside stores twice as many columns as D has",
        (
            "tests/core/test_epilogue_calls.py::test_plans_of_gates_whose_result_lies_before_the_gate_are_refused",
        ),
    ),
    # -- frameworks --------------------------------------------------------------------------------
    Mutant(
        "complex-gradients",
        "unigemm/torch/gradients.py",
        "    return None if b is None else multiply(g, b.mH), None if",
        "    return None if b is None else multiply(g, b.mT), None if",
        "gradients of stacks of complex matrices are those of the conjugate",
        (
            "tests/frameworks/test_torch_operators.py::test_gradients_of_complex_products_and_stacks_are_those_of_finite_differences",
        ),
    ),
    Mutant(
        "meta-dtype",
        "unigemm/torch/operators.py",
        "dtype = torch.float32 if float8 else torch.int32 if a.dtype is torch.int8 else a.dtype",
        "dtype = torch.float32 if a.dtype == torch.float8_e4m3fn else"
        " torch.int32 if a.dtype is torch.int8 else a.dtype",
        "a compiled product of float8_e5m2 has another type than the eager one",
        (
            "tests/frameworks/test_torch_operators.py::test_results_on_meta_have_the_types_of_real_ones_for_every_pair",
        ),
    ),
)
