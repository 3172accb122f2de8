"""Mutants of device code: elements that are not written, races, barriers, descriptors, copies."""

from __future__ import annotations

from planting import Mutant

_WGMMA = "backends/cute_wgmma/kernels/"
_SIMT = "backends/cute_simt/kernels/"
_TCGEN05 = "backends/cute_tcgen05/kernels/"
_CUTE = "backends/cute/kernels/"
_CUTILE = "backends/cutile/kernels/"

_EMULATED = "tests/emulator/test_emulator_"
_CROSSED = f"{_EMULATED}crossings.py::test_every_two_features_go_together"
_FUSED = f"{_EMULATED}epilogues.py::test_every_way_of_computing_a_product_carries_out_its_epilogue"
_OF_WGMMA = f"{_EMULATED}wgmma.py"
_SHARED = f"{_OF_WGMMA}::test_every_way_of_sharing_and_storing"
_TYPES = f"{_OF_WGMMA}::test_types_and_layouts_within_their_error_bounds"
_DIRECT = f"{_OF_WGMMA}::test_direct_stores_leave_what_is_behind_a_row"
_ROWS = (
    f"{_EMULATED}cuts_of_k.py -k cute_wgmma",
    f"{_OF_WGMMA}::test_columns_of_a_neighbours_tile_keep_its_bits",
)
_HANDED_BACK = f"{_OF_WGMMA}::test_stages_are_handed_back_behind_the_products_that_read_them"
_TURNED = f"{_OF_WGMMA}::test_tiles_that_begin_elsewhere_along_k_take_every_k_tile_once"
_COLUMNS = f"{_EMULATED}epilogues.py::test_sums_of_columns_take_every_row_and_write_no_column_more"
_TOTALS = (
    f"{_EMULATED}epilogues.py::test_bias_gradients_are_sums_over_whichever_dimensions_they_lack"
)
_BOXES = (f"{_SHARED} -k 'float16 and pingpong'", f"{_SHARED} -k tma", f"{_FUSED} -k cute_wgmma")
_OF_SIMT = f"{_EMULATED}simt.py"
_EVERYWHERE = f"{_OF_SIMT}::test_layouts_dtypes_and_offsets_at_awkward_sizes"
_PARTS = f"{_OF_SIMT}::test_configurations_rasters_and_orders_of_warps_give_the_product"
_ANY_GPU = (_EVERYWHERE, _PARTS, f"{_FUSED} -k cute_simt", f"{_CROSSED} -k cute_simt")
_TAIL = (
    f"{_OF_SIMT}::test_only_the_tiles_of_the_last_wave_have_parts",
    f"{_OF_SIMT}::test_parts_of_odd_rows_are_stored_wherever_a_tile_has_moved_to",
)
_SPECIALIZED = (f"{_EMULATED}warp_specialized.py::test_a_part_of_k_may_be_empty",)
_CLUSTER = (f"{_EMULATED}simt_cluster.py",)
_OF_TCGEN05 = f"{_EMULATED}tcgen05_gemm.py"
_PAIRS = f"{_OF_TCGEN05}::test_every_way_of_sharing"
_BLACKWELL = (
    f"{_PAIRS} -k 33",
    f"{_OF_TCGEN05}::test_stacks_share_operands",
    _PAIRS,
    f"{_CROSSED} -k cute_tcgen05",
)
_BLOCKS = (f"{_EMULATED}block_scales.py",)
_COPIES = (f"{_EMULATED}copies.py",)
_EPILOGUE_TILES = ("tests/backends/test_cutile_epilogues.py",)
_GROUPED_TILES = ("tests/backends/test_cutile_grouped.py -k 'not compile'",)

KERNEL_MUTANTS = (
    # -- cute_wgmma ------------------------------------------------------------------------------
    Mutant(
        "wgmma-register-rows",
        _WGMMA + "epilogue.py",
        "if row + count <= m:",
        "if row + count < m:",
        "the last element of a column of D is not written (swap-AB, A from registers)",
        (f"{_CROSSED} -k cute_wgmma",),
    ),
    Mutant(
        "wgmma-last-pair",
        _WGMMA + "epilogue.py",
        "if c + 1 < n:",
        "if c + 2 < n:",
        "the last column of an odd N is not written where pairs are not stored together",
        (_DIRECT, f"{_CROSSED} -k cute_wgmma"),
    ),
    Mutant(
        "wgmma-slice-barrier",
        _WGMMA + "epilogue.py",
        "    cute.arch.barrier(barrier_id=STORE_BARRIER, number_of_threads=threads)\n    if busy:\n"
        "        for v in",
        "    if busy:\n        for v in",
        "slices of K read each other's partial sums before they are written: a race",
        (
            f"{_SHARED} -k slice_k",
            f"{_OF_WGMMA}::test_slices_of_k_wait_for_what_is_late_in_every_round",
        ),
    ),
    Mutant(
        "wgmma-cluster-rank",
        _WGMMA + "epilogue.py",
        "other = rank ^ step if",
        "other = rank + step if",
        "the accumulators of a CTA outside of the cluster are read",
        (f"{_SHARED} -k cluster_k",),
    ),
    Mutant(
        "wgmma-cluster-turn",
        _WGMMA + "epilogue.py",
        "other = rank ^ step if",
        "other = (rank + step) % count if",
        "each CTA along K begins with its own part and goes on with the next one's: rows that lie"
        " elsewhere in a tile have other bits, though batch_invariant=True",
        _ROWS,
    ),
    Mutant(
        "wgmma-cluster-pairs",
        _WGMMA + "epilogue.py",
        "values = added_in_pairs(fetched[of_vector : of_vector + count])",
        "values = added(fetched[of_vector : of_vector + count])",
        "each CTA along K adds its own part first, the others' after it, in an order of its own",
        _ROWS,
    ),
    Mutant(
        "wgmma-box-sync",
        _WGMMA + "epilogue.py",
        "            cute.arch.sync_warp()\n            fill(spec, acc, part, boxes.toint(), i, block)\n",
        "            fill(spec, acc, part, boxes.toint(), i, block)\n",
        "rows of a box are overwritten before all lanes have stored the last ones: a race",
        (f"{_SHARED} -k rows", f"{_OF_WGMMA}::test_rows_of_d_begin_at_any_element"),
    ),
    Mutant(
        "wgmma-box-fence",
        _WGMMA + "epilogue.py",
        '            cute.arch.fence_proxy("async.shared", space="cta")\n',
        "",
        "TMA stores what a box held before",
        (*_BOXES,),
    ),
    Mutant(
        "wgmma-box-reuse",
        _WGMMA + "epilogue.py",
        "cute.arch.cp_async_bulk_wait_group(geo.store_buffers - 1, read=True)",
        "cute.arch.cp_async_bulk_wait_group(geo.store_buffers, read=True)",
        "a box is overwritten while TMA still reads it",
        (*_BOXES,),
    ),
    Mutant(
        "wgmma-wait-group",
        _WGMMA + "mainloop.py",
        "        warpgroup.wait_group(1)\n        promote_acc(spec, Accumulators(even,",
        "        warpgroup.wait_group(2)\n        promote_acc(spec, Accumulators(even,",
        "float8 accumulators are promoted while wgmma still adds to them",
        (f"{_HANDED_BACK} -k float8",),
    ),
    Mutant(
        "wgmma-early-release",
        _WGMMA + "mainloop.py",
        "        warpgroup.commit_group()\n        warpgroup.wait_group(1)\n        if k_tile > 0:",
        "        warpgroup.commit_group()\n        warpgroup.wait_group(2)\n        if k_tile > 0:",
        "a stage is handed back while wgmma still reads it",
        (f"{_HANDED_BACK} -k bfloat16",),
    ),
    Mutant(
        "wgmma-fragment-swizzle",
        _WGMMA + "fragments.py",
        "(atoms * ATOM_BYTES) + first % _UNIT",
        "(atoms * ATOM_BYTES) + (first + 8) % _UNIT",
        "rows of A are exchanged (64 rows from registers)",
        (f"{_SHARED} -k fragments", f"{_TYPES} -k float32", f"{_CROSSED} -k cute_wgmma"),
    ),
    Mutant(
        "wgmma-odd-k-tiles",
        _WGMMA + "mainloop.py",
        "    if k_tiles % promote > 0:",
        "    if k_tiles % promote > 1:",
        "the last k_tile of a promoted sum is left out",
        (f"{_OF_WGMMA}::test_sums_of_split_numbers_are_promoted_whatever_the_number_of_k_tiles",),
    ),
    Mutant(
        "wgmma-pingpong-skip",
        _WGMMA + "consumer.py",
        "stage, phase = skip(stage, phase, work.k_tiles, config.stages)",
        "stage, phase = skip(stage, phase, work.k_tiles + 1, config.stages)",
        "the second group of ping-pong waits for the wrong stage",
        (f"{_SHARED} -k 'float16 and pingpong'", f"{_SHARED} -k pingpong"),
    ),
    Mutant(
        "wgmma-cluster-leave",
        _WGMMA + "consumer.py",
        "        cute.arch.cluster_wait()  # for those that read this CTA's accumulators\n",
        "        pass\n",
        "a CTA ends while others read its shared memory",
        (f"{_SHARED} -k cluster_k",),
    ),
    Mutant(
        "wgmma-producer-leave",
        _WGMMA + "producer.py",
        "    if const_expr(cm * cn > 1):\n        for _ in range_constexpr(config.stages):",
        "    if const_expr(cm * cn > 8):\n        for _ in range_constexpr(config.stages):",
        "a CTA ends while others still signal its barriers",
        (f"{_SHARED} -k cooperative",),
    ),
    Mutant(
        "wgmma-last-store",
        _WGMMA + "consumer.py",
        "            cute.arch.cp_async_bulk_wait_group(0, read=True)\n",
        "            pass\n",
        "a CTA ends while TMA reads its shared memory",
        (*_BOXES,),
    ),
    Mutant(
        "wgmma-rotation",
        _WGMMA + "producer.py",
        "            at += work.step\n            at = select(at >= end, work.first, at)\n        unit += step",
        "            at += work.step\n            at = select(at > end, work.first, at)\n        unit += step",
        "a k_tile beyond the end of a part is read in place of its first",
        (_TURNED,),
    ),
    # -- cute, of all CuTe backends ----------------------------------------------------------------
    Mutant(
        "reduction-slices",
        _CUTE + "reduction.py",
        "for other in cutlass.range(thread + wide, threads, wide, unroll=1):",
        "for other in cutlass.range(thread + wide, threads - wide, wide, unroll=1):",
        "the last slice of many parts of K is not added",
        (_COLUMNS,),
    ),
    Mutant(
        "reduction-barrier",
        _CUTE + "reduction.py",
        "    cute.arch.sync_threads()\n    if thread < wide:",
        "    if thread < wide:",
        "partial sums of slices are read before they are written: a race",
        (_TOTALS, _PARTS),
    ),
    Mutant(
        "reduction-batch",
        _CUTE + "reduction.py",
        "    inside = index < Int64(batches) * m * per_row\n",
        "    inside = index < Int64(batches) * m * per_row - 1\n",
        "the last vector of a split-K product is not written",
        (_PARTS, f"{_SHARED} -k True"),
    ),
    Mutant(
        "bias-gradient-columns",
        _CUTE + "bias_gradients.py",
        "    here = column < n\n",
        "    here = column <= n\n",
        "a bias gradient is written one column too far",
        (_COLUMNS,),
    ),
    Mutant(
        "repack-panels-zero",
        _CUTE + "repack.py",
        "            if row >= rows:\n                values[i].fill(0)\n",
        "",
        "rows of a panel behind the last one hold any values",
        (
            f"{_OF_WGMMA}::test_panels_feed_tiles_of_any_eights",
            f"{_OF_WGMMA}::test_copies_of_operands_of_every_alignment",
        ),
    ),
    Mutant(
        "repack-last-row",
        _CUTE + "repack.py",
        "            if row + i < rows:\n                write_unit(kind, values[i], 0, into + i * pitch",
        "            if row + i < rows - 1:\n                write_unit(kind, values[i], 0, into + i * pitch",
        "the last row of a copied operand is missing",
        (f"{_OF_WGMMA}::test_operands_at_odd_addresses_are_repacked", *_COPIES),
    ),
    Mutant(
        "repack-quiet",
        _CUTE + "repack.py",
        "            words = [quiet(word) for word in words]\n",
        "            pass\n",
        "signalling NaN of float32 operands are not quieted in their TF32 copies",
        equivalent="TMA brings copies as TF32, and writes 0x7FFFFFFF for any NaN",
    ),
    Mutant(
        "scheduler-rotation",
        _CUTE + "tile_scheduler.py",
        "% ROTATIONS) * k_tiles // ROTATIONS",
        "% ROTATIONS) * (k_tiles + 1) // ROTATIONS + 1",
        "a k_tile of another part of K is added",
        (_TURNED, f"{_SHARED} -k float8"),
    ),
    Mutant(
        "scheduler-parts",
        _CUTE + "tile_scheduler.py",
        "k_tiles = (k_tiles - first + apart - 1) // order.step",
        "k_tiles = (k_tiles - first) // order.step",
        "the last k_tile of parts of K is left out",
        (f"{_PAIRS} -k '136 and 200'", f"{_SHARED} -k 'float8'", f"{_SHARED} -k 'split and True'"),
    ),
    # -- cute_simt ---------------------------------------------------------------------------------
    Mutant(
        "simt-vector-columns",
        _SIMT + "epilogue.py",
        "        if inside & (first_n % geo.store_width == 0):",
        "        if inside:",
        "vectors are stored at addresses that are no multiple of their size",
        (*_ANY_GPU,),
    ),
    Mutant(
        "simt-last-row",
        _SIMT + "epilogue.py",
        "            there = row < to.extents[0]\n",
        "            there = row < to.extents[0] - 1\n",
        "the last row of D is not written",
        (*_ANY_GPU,),
    ),
    Mutant(
        "simt-in-place-once",
        _SIMT + "epilogue.py",
        "begin = whole(first_m, tile_m), whole(first_n, tile_n)",
        "begin = whole(first_m, tile_m), Int32(0)",
        "columns where tiles overlap add C twice, where C is D",
        (f"{_EMULATED}epilogues.py::test_c_in_place_is_added_once_where_tiles_overlap",),
    ),
    Mutant(
        "simt-patch-sync",
        _SIMT + "epilogue.py",
        "        cute.arch.sync_warp()\n        # The patch to device memory",
        "        # The patch to device memory",
        "a patch is read before all lanes have written it: a race",
        (*_ANY_GPU,),
    ),
    Mutant(
        "simt-gated-columns",
        _SIMT + "epilogue.py",
        "existing = None if existing is None else existing // 2",
        "existing = None if existing is None else (existing - 1) // 2",
        "the last column of a gated result is not written",
        (_FUSED, f"{_CROSSED} -k cute_simt"),
    ),
    Mutant(
        "tail-wait",
        _SIMT + "tail_split_k.py",
        "        wait_with(where, address, apart)\n",
        "",
        "parts of K are added before the kernel that makes them has ended",
        _TAIL,
    ),
    Mutant(
        "tail-rows",
        _SIMT + "tail_split_k.py",
        "    if row < m:\n        left = n - column_in_d",
        "    if row <= m:\n        left = n - column_in_d",
        "a row behind D is written",
        (f"{_EMULATED}epilogues.py::test_whole_tiles_and_those_of_a_tail_have_the_same_epilogue",),
    ),
    Mutant(
        "cluster-transpose-sync",
        _SIMT + "cluster_split_k.py",
        "    cute.arch.sync_warp()\n    pointer = cute.make_ptr(dtype, patch",
        "    pointer = cute.make_ptr(dtype, patch",
        "lanes read what others have not written yet: a race",
        _CLUSTER,
    ),
    Mutant(
        "cluster-leave",
        _SIMT + "cluster_split_k.py",
        "    cute.arch.cluster_wait()  # for those that read this CTA's accumulators\n",
        "",
        "a CTA ends while others read its shared memory",
        _CLUSTER,
    ),
    Mutant(
        "specialized-wait",
        _SIMT + "warp_specialized.py",
        "        cute.arch.griddepcontrol_wait()\n",
        "        pass\n",
        "a part of K without k_tiles is stored while the kernel before still reads the workspace",
        _SPECIALIZED,
    ),
    # -- cute_tcgen05 ------------------------------------------------------------------------------
    Mutant(
        "tcgen05-wait",
        _TCGEN05 + "gemm.py",
        "    cute.arch.griddepcontrol_wait()\n",
        "",
        "operands are read while the kernel before still writes them",
        _BLACKWELL,
    ),
    Mutant(
        "tcgen05-fence",
        _TCGEN05 + "gemm.py",
        "    cute.arch.mbarrier_wait(empty - spec.config.stages, phase)  # `full` lie before `empty`\n"
        "    after_sync()\n",
        "    cute.arch.mbarrier_wait(empty - spec.config.stages, phase)  # `full` lie before `empty`\n",
        "tcgen05 instructions may run before the barrier that orders them",
        _BLACKWELL,
    ),
    Mutant(
        "tcgen05-acc-empty",
        _TCGEN05 + "gemm.py",
        "            cute.arch.mbarrier_wait(acc_empty + buffer, buffer_phase)\n            after_sync()\n        into",
        "            after_sync()\n        into",
        "accumulators are overwritten while the last unit's are still read",
        (f"{_PAIRS} -k 520",),
    ),
    Mutant(
        "tcgen05-leave",
        _TCGEN05 + "tensor_memory.py",
        "    before_sync()\n    with cute.arch.elect_one():\n        if const_expr(ctas == 2):",
        "    with cute.arch.elect_one():\n        if const_expr(ctas == 2):",
        "accumulators may be overwritten before the last unit's have been read",
        (f"{_PAIRS} -k 520",),
    ),
    Mutant(
        "tcgen05-empty-part",
        _TCGEN05 + "epilogue.py",
        "        if reading.k_tiles > 0:  # else this part of K is empty, and the buffer holds another's\n",
        "        if reading.k_tiles >= 0:\n",
        "an empty part of K adds what tensor memory held before",
        (f"{_PAIRS} -k '130 and 64'",),
    ),
    Mutant(
        "tcgen05-box-reuse",
        _TCGEN05 + "epilogue.py",
        "        cute.arch.cp_async_bulk_wait_group(BOXES - 1, read=True)\n",
        "        cute.arch.cp_async_bulk_wait_group(BOXES, read=True)\n",
        "a box is overwritten while TMA still reads it",
        (f"{_PAIRS} -k 600",),
    ),
    Mutant(
        "tcgen05-last-row",
        _TCGEN05 + "epilogue.py",
        "        if row < m:\n            store_row(",
        "        if row < m - 1:\n            store_row(",
        "the last row of D is not written, where D is stored from registers",
        _BLACKWELL,
    ),
    Mutant(
        "tcgen05-answer-fence",
        _TCGEN05 + "clc_scheduler.py",
        '    cute.arch.fence_proxy("async.shared", space="cta")\n    return x, found\n',
        "    return x, found\n",
        "an answer of the hardware's scheduler is overwritten before it was read",
        (f"{_PAIRS} -k 'dynamic and float8'", f"{_PAIRS} -k dynamic"),
    ),
    Mutant(
        "tcgen05-scale-padding",
        _TCGEN05 + "gemm.py",
        "            stage, phase = take_k_tile(spec, into, sources, whole, stage, phase, ring, free, left)",
        "            stage, phase = take_k_tile(spec, into, sources, whole, stage, phase, ring, free)",
        "NaN in the padding of NVFP4's scales reaches D",
        (f"{_EMULATED}block_scales.py::test_k_may_end_anywhere_in_a_k_tile", *_BLOCKS),
    ),
    # -- cutile ------------------------------------------------------------------------------------
    Mutant(
        "cutile-groups-overlap",
        _CUTILE + "grouped.py",
        "            at = ct.maximum(at, before)\n",
        "",
        "groups overlap where offsets fall",
        _GROUPED_TILES,
    ),
    Mutant(
        "cutile-empty-slice",
        _CUTILE + "grouped.py",
        "    return first, first + (end - begin)",
        "    return first, max(end, first)",
        "an empty group of K at the end has the K before it",
        _GROUPED_TILES,
    ),
    Mutant(
        "cutile-array-of-groups",
        _CUTILE + "grouped.py",
        "        if axes.rows if along == ROWS else axes.columns:\n",
        "        if False:\n",
        "a group reads the first rows of auxiliary arrays",
        _GROUPED_TILES,
    ),
    Mutant(
        "cutile-second-gate",
        _CUTILE + "epilogue_steps.py",
        "            value = gated(values[step[1]], program.gate, 1)",
        "            value = gated(values[step[1]], program.gate, 0)",
        "the gate is multiplied by itself",
        _EPILOGUE_TILES,
    ),
    Mutant(
        "cutile-shared-array",
        _CUTILE + "epilogue_steps.py",
        "    i1, i0 = min(at.outer, x.shape[0] - 1), min(at.inner, x.shape[1] - 1)",
        "    i1, i0 = min(at.outer, x.shape[0] - 1), at.inner",
        "products of a stack read behind an array that they share",
        _EPILOGUE_TILES,
    ),
    Mutant(
        "cutile-nan-to-integer",
        _CUTILE + "epilogue_steps.py",
        "        return ct.where(value == value, near, 0.0).astype(dtype)",
        "        return near.astype(dtype)",
        "NaN becomes any integer instead of 0",
        (
            "tests/backends/test_cutile_epilogues.py::test_what_is_no_number_is_zero_in_integers_before_it_is_converted",
        ),
    ),
    Mutant(
        "cutile-largest-edge",
        _CUTILE + "epilogue_steps.py",
        "(row < ends[0]) & (column < ends[1])",
        "(row < ends[0]) & (column <= ends[1])",
        "the largest magnitude counts what lies outside of D",
        (
            "tests/backends/test_cutile_epilogues.py::test_the_largest_magnitude_is_that_of_what_lies_in_d",
        ),
    ),
)
