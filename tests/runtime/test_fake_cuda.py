"""The CUDA backend without a GPU, see ``fake_cuda_cases``: each case runs in a process of its own, with its own driver."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fake_driver

HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(fake_driver.COMPILER is None, reason="there is no C++ compiler for the fake driver")


CASES = {
    "fake_cuda_cases": [
        ("values_equal_the_cpus", 4, 1),
        ("values_equal_the_cpus", 4, 0),
        ("values_equal_the_cpus", 1, 1),
        ("values_equal_the_cpus", 4, 2),
        ("values_equal_the_cpus", 4, 3),
        ("graphs_give_the_same_values", 4, 1),
        ("graphs_give_the_same_values", 4, 0),
        ("graphs_give_the_same_values", 4, 3),
        ("values_equal_the_cpus", 8, 2),
        ("graphs_give_the_same_values", 8, 1),
        ("graphs_note_the_branch_first_that_shall_start_last", 1, 1),
        ("warm_runs_move_nothing", 4, 1),
        ("instances_share_parameters", 4, 0),
        ("faults_name_their_cause", 2, 1),
        ("too_few_gpus_say_what_to_do", 1, 1),
        ("a_kernel_of_two_gpus_is_refused", 2, 1),
        ("a_gpu_that_stays_lost_is_told_and_others_go_on", 2, 1),
        ("a_gpu_that_stays_lost_is_told_and_others_go_on", 4, 0),
        ("a_gpu_that_stays_lost_is_told_and_others_go_on", 8, 1),
        ("a_fork_is_refused", 2, 1),
        ("images_are_launched_with_their_pointers", 2, 1),
    ],
    "fake_cuda_pipelines": [
        ("pipelines_equal_the_cpus", 4, 1),
        ("pipelines_equal_the_cpus", 1, 1),
        ("batches_arrive_and_leave_while_others_are_computed", 1, 1),
        ("a_fault_fails_one_batch_of_a_pipeline", 4, 1),
        ("a_run_that_cannot_mark_its_end_passes_its_turn", 1, 1),
    ],
    "fake_cuda_tensors": [
        ("tensors_on_gpus_follow_the_callers_stream", 1, 1),
        ("tensors_on_the_default_stream_and_on_several_gpus", 4, 1),
        ("tensors_on_the_default_stream_and_on_several_gpus", 4, 0),
        ("tensors_on_the_default_stream_and_on_several_gpus", 4, 3),
        ("results_have_memory_of_their_own", 2, 1),
        ("what_a_run_leaves_behind", 2, 1),
        ("tensors_that_cannot_be_taken_are_refused", 3, 1),
        ("workspaces_are_shared_by_a_stream_and_go_with_it", 1, 1),
    ],
    "fake_cuda_states": [
        ("states_pass_from_run_to_run", 4, 1),
        ("plans_of_states_share_what_stays_on_the_gpu", 2, 1),
        ("states_move_between_plans_that_store_them_on_other_gpus", 2, 1),
        ("states_in_place_have_one_memory", 4, 1),
        ("states_pass_from_run_to_run", 4, 0),
        ("a_failed_run_leaves_states_as_they_were", 4, 1),
        ("a_gpu_without_room_leaves_states_as_they_were", 4, 1),
        ("a_module_goes_while_pythons_kernels_still_run", 4, 1),
    ],
    "fake_cuda_order": [
        ("what_no_order_has_is_told_whatever_the_time", 4, 1),
        ("what_is_freed_or_destroyed_is_not_waited_for", 4, 1),
        ("graphs_are_checked_by_their_edges", 4, 1),
        ("independent_nodes_of_a_graph_come_in_any_order", 4, 1),
        ("pinned_memory_has_its_flags_and_its_limit", 4, 1),
        ("large_tensors_go_through_the_host_in_chunks", 2, 0),
        ("peers_whose_bytes_arrive_wrong_are_not_used", 2, 1),
        ("a_gpu_that_gets_no_access_is_no_peer", 2, 1),
        ("peers_that_are_slower_than_the_host_are_not_copied_between", 2, 1),
        ("peers_that_are_right_are_used", 2, 1),
        ("a_trial_of_peers_that_fails_is_told", 2, 1),
        ("peers_reach_what_their_direction_allows", 4, 2),
        ("peers_reach_what_their_direction_allows", 4, 3),
        ("a_failure_of_each_call_is_told_and_leaves_nothing", 4, 1),
        ("a_failure_of_each_call_is_told_and_leaves_nothing", 4, 0),
    ],
    "fake_cuda_cold_start": [
        ("parameters_are_pinned_where_the_file_is_mapped", 1, 1),
        ("memory_that_cannot_be_registered_is_allocated", 1, 1),
        ("a_module_goes_before_its_parameters_are_read", 1, 1),
        ("preparation_opens_the_gpu_and_stages_say_so", 1, 1),
        ("kernels_of_libraries_are_called_once_before_the_first_run", 1, 1),
        ("small_loads_become_one_copy", 1, 1),
        ("few_streams_need_no_more_connections", 1, 1),
        ("many_streams_have_a_connection_each", 1, 1),
        ("a_fork_reads_anew", 1, 1),
    ],
    "fake_cuda_failures": [
        ("a_capture_that_fails_anywhere_is_ended", 4, 1),
        ("outputs_are_taken_again_once_nobody_holds_them", 1, 1),
        ("pinned_outputs_are_where_the_gpu_wrote_them", 1, 1),
        ("any_number_of_threads_may_issue_a_run", 4, 1),
        ("inputs_may_begin_anywhere", 1, 1),
        ("large_inputs_and_outputs_are_copied_whole", 1, 1),
    ],
    "fake_cuda_doctor": [
        ("artifacts_are_healthy", 4, 1),
        ("faults_are_told", 4, 1),
        ("machines_are_described", 3, 0),
        ("an_iommu_without_virtualisation_is_told", 2, 1),
        ("peers_that_corrupt_bytes_are_told", 2, 1),
        ("rates_between_gpus_are_told", 2, 1),
    ],
}
"""By script: cases, with the number of GPUs, and which of these reach each other's memory: 0 none, 1 all, 2 those of a pair
(0 and 1, 2 and 3), 3 each reaches those with a higher number."""
AGAIN = [
    ("values_equal_the_cpus", 4, 2),
    ("graphs_give_the_same_values", 4, 3),
    ("a_failure_of_each_call_is_told_and_leaves_nothing", 4, 0),
    ("values_equal_the_cpus", 1, 1),
    ("graphs_give_the_same_values", 4, 0),
    ("tensors_on_the_default_stream_and_on_several_gpus", 4, 0),
    ("states_pass_from_run_to_run", 4, 0),
]
"""Cases that run on other GPUs as well. They are thorough, and so are those beyond the first four of a script."""


@pytest.mark.parametrize(
    ("script", "case", "gpus", "peers"),
    [
        pytest.param(script, *case, marks=[pytest.mark.thorough] if case in AGAIN or n > 3 else [])
        for script, cases in CASES.items()
        for n, case in enumerate(cases)
    ],
)
def test_without_a_gpu(script, case, gpus, peers):
    fake_driver.run_case(HERE / f"{script}.py", case, gpus, peers)


def test_no_driver_is_an_error_that_says_what_to_do(tmp_path):
    code = (
        "import numpy as np\nfrom fake_cuda_cases_relay import module\n"
        "try:\n    module.run(np.zeros(4, 'uint8'))\nexcept Exception as error:\n    print(error)"
    )
    (tmp_path / "fake_cuda_cases_relay.py").write_text(
        "from runtime_plans import PlanBuilder\n"
        "builder = PlanBuilder('p', 'cuda', 1)\n"
        "x, out, here = builder.argument('x', [4], 'uint8'), builder.output([4], 'uint8'), builder.arena(0, [4], 'uint8')\n"
        "builder.copy(here, out, [builder.copy(x, here)])\n"
        "module = builder.module()\n"
    )
    environment = {
        **os.environ,
        "TVM_SCHED_CUDA_DRIVER": str(tmp_path / "libnone.so"),
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(HERE), str(HERE.parents[1] / "python")]),
    }
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert "the CUDA driver cannot be loaded" in done.stdout, done.stderr
    assert "install NVIDIA's driver" in done.stdout
