"""The faults: what is injected, what is expected, and the checks that inject and look.

A check is a function of this directory, or a test that exists: `crate/target: name` in Rust, `path::name` in pytest. Both are run.
"""

from dataclasses import dataclass

import deaths
import disks
import starts
import storm

RUN, E2E, MIG = "cantle-agent/node: ", "tests/e2e/test_", "tests/e2e/test_mig.py::"
SHIPPED = "tests/e2e/test_mig_as_shipped.py::"


@dataclass(frozen=True)
class Fault:
    number: int
    injected: str
    expected: str
    checks: tuple
    # Also in the gate: it takes a few seconds, and no other suite of the gate has it.
    short: bool = False


def fault(number, injected, expected, *checks, short=False):
    return Fault(number, injected, expected, checks, short)


FAULTS = (
    fault(
        1,
        "`kill -9` of the agent while tasks run, at random moments",
        "tasks continue under their limits; the next agent adopts them within 1 s; none starts twice, no slice is freed",
        RUN + "a_restarted_daemon_adopts_its_tasks_within_a_second",
        RUN + "daemons_killed_again_and_again_lose_and_repeat_nothing",
    ),
    fault(2, "`kill -9` of the agent between claim and start", "the task starts exactly once", MIG + "test_an_agent_killed_while_it_makes_an_instance"),
    fault(
        3,
        "`kill -9` of the agent between the start and its record",
        "the task is adopted and not started again",
        deaths.killed_between_start_and_record,
        starts.supervisors_killed,
        short=True,
    ),
    fault(4, "`kill -9` of a task's first process", "its slice is free soon (1 s on a quiet machine), its exit is recorded, siblings continue", deaths.killed_task, short=True),
    fault(
        5,
        "`kill -9` of one of many processes while they allocate",
        "the accounting of the others is exact, none hangs",
        "cantle-ledger/processes: nothing_is_lost_however_often_processes_are_killed",
        "tests/bypass/test_crash.py::test_kills_at_random",
    ),
    fault(
        6,
        "`kill -9` of the holder of a lock or a turn",
        "the next one proceeds at once",
        "cantle-ledger/model: an_owner_may_die_at_any_access_beside_a_living_neighbor",
        "tests/compute/test_gate.py::test_nobody_waits_for_a_killed_process",
        "tests/e2e/test_users.py::test_root_does_not_wait_for_a_user_who_holds_the_lock",
    ),
    fault(7, "`SIGSTOP` of a process at 200 moments while it allocates", "the other processes of its slice continue", deaths.stopped_in_the_middle, short=True),
    fault(8, "`kill -9` of the server in the middle of everything", "each task runs once and its end is reported", "cantle-server/crowd: killed_in_the_middle"),
    fault(
        9,
        "loss of power: unsynced writes are lost or torn",
        "the state is one that was committed",
        disks.power_loss,
        "cantle-runtime/lib: files::tests::a_loss_of_power_at_any_call_leaves_the_old_file_or_the_new_one",
        "cantle-runtime/power_loss: how_a_task_ended_survives_a_loss_of_power",
        short=True,
    ),
    fault(
        10,
        "restart of the machine: no process is left, `/run` is empty",
        "tasks that ran are reported lost, nothing is held, new ones run",
        deaths.reboot,
        "cantle-node/lib: store::tests::leases_of_a_former_boot_are_forgotten",
        short=True,
    ),
    fault(
        11,
        "accounting region truncated, overwritten, of another version",
        "its own slice refuses allocations; only processes that map it crash, no other slice is affected",
        "cantle-ledger/hostile: a_spoiled_file_hurts_only_its_owner",
        "cantle-ledger/hostile: a_process_whose_file_is_cut_short_ends_alone",
        "cantle-ledger/region: files_that_are_not_ours_are_refused",
    ),
    fault(12, "accounting region deleted or replaced while it is mapped", "the limit holds", "cantle-ledger/hostile: a_replaced_or_deleted_file_leads_nowhere"),
    fault(
        13,
        "pids of dead processes in the accounting",
        "a process that asks gets their memory",
        "cantle-ledger/processes: a_dead_process_makes_room_for_one_that_asks",
    ),
    fault(
        14,
        "a pid that is used again",
        "the new process counts as another one",
        "cantle-runtime/lib: processes::tests::a_reused_pid_is_somebody_else",
        "cantle-ledger/hostile: a_forged_slot_does_not_keep_a_lease",
    ),
    fault(15, "the same pid in two pid namespaces", "each is counted by itself", deaths.same_pid_twice, short=True),
    fault(
        16,
        "`fork` after CUDA was initialized",
        "CUDA refuses the child, nothing is counted twice",
        deaths.fork_after_init,
        "cantle-ledger/processes: a_child_that_outlives_its_parent_does_not_keep_the_parents_memory",
        short=True,
    ),
    fault(17, "more processes than the accounting has slots (1,100)", "a CUDA error for the surplus, no process is killed, neighbors continue", deaths.too_many_processes),
    fault(18, "the kernel kills a task for main memory (`memory.limit_in_bytes`)", "as 4", deaths.out_of_memory, short=True),
    fault(
        19,
        "the container engine is killed and comes back",
        "running containers are adopted, none is created twice",
        "cantle-runtime/container: the_engine_is_killed_and_comes_back",
        "cantle-runtime/container: a_container_is_adopted_and_its_output_is_not_doubled",
    ),
    fault(20, "the engine creates a container, its answer is lost", "it is found again, no second one is created", "cantle-runtime/container: a_lost_answer_does_not_make_a_second_container"),
    fault(
        21,
        "the container engine hangs",
        "calls time out, the task can be killed",
        "cantle-runtime/container: an_engine_that_hangs_is_given_up",
        "cantle-runtime/container: a_task_is_killed_even_if_the_engine_hangs",
    ),
    fault(22, "no driver library", "the start is refused in one line, exit code 7", deaths.no_driver, short=True),
    fault(
        23,
        "one GPU of two is lost",
        "the other's tasks continue, the lost one gets none; it serves again when it answers",
        deaths.lost_gpu,
        SHIPPED + "test_a_gpu_that_is_lost_at_the_start_is_named_and_the_others_serve",
        short=True,
    ),
    fault(24, "NVML blocks for a long time", "other GPUs and their tasks do not wait", "cantle-driver/sim: a_gpu_that_does_not_answer_holds_up_nobody"),
    fault(25, "Xid 13 (a program's fault), Xid 79 (the hardware's)", "13: nothing; 79: the GPU takes no task", deaths.hardware_xid),
    fault(26, "the driver's libraries are replaced", "no new task until the old ones have ended, then the new driver", E2E + "driver_update.py::test_an_agent_notices_that_the_driver_was_updated[True]"),
    fault(27, "MIG: GPU instance created, compute instance fails", "the GPU instance is removed", MIG + "test_a_half_made_instance_is_undone"),
    fault(
        28,
        "`kill -9` between the steps of a MIG instance",
        "partly created instances are removed, those of others stay",
        MIG + "test_killed_at_any_step_nothing_leaks",
        MIG + "test_instances_of_others_are_left_alone",
    ),
    fault(29, "MIG: an instance cannot be removed (in use)", "the error names it, the rest of the GPU serves", MIG + "test_an_instance_that_will_not_go_away_is_named"),
    fault(
        30,
        "MIG: insufficient resources although placements are free",
        "waits less and less often, with the reason",
        SHIPPED + "test_who_waits_asks_less_and_less",
        "tests/e2e/test_mig_node.py::test_media_engines_that_run_out_are_waited_for_and_the_reason_is_told",
    ),
    fault(31, "the API server is unreachable", "running pods are not affected, nothing is created twice", "tests/cluster/test_pods.py::test_without_the_api_server_nothing_is_lost"),
    fault(32, "the injector is unreachable", "only pods that request a slice are refused", "tests/cluster/test_injector.py::test_without_the_injector_only_pods_that_ask_are_refused"),
    fault(33, "the clock jumps by +1 h, -2 h, +25 h, -24 h", "no task is lost, new ones start, a stop is obeyed", disks.clock_jumps, short=True),
    fault(34, "the agent's clock is an hour ahead of the server's", "each task runs once", disks.skewed_clocks, short=True),
    fault(
        35,
        "disk full: the node's, and the server's at every write; no room for a process or a descriptor",
        "a clear refusal, running tasks continue, all works again when there is space",
        disks.full_disk,
        starts.full_disk_at_the_end,
        starts.no_room_for_a_start,
        starts.no_room_in_run,
        starts.killed_on_a_full_disk,
        starts.started_on_a_full_disk,
        starts.no_processes_for_a_start,
        starts.no_descriptors_for_a_start,
        "cantle-server/faults: a_disk_that_fails_at_any_write_stops_nobody_for_good",
        short=True,
    ),
    fault(
        36,
        "two agents for one GPU",
        "the second is refused",
        "cantle-node/lib: store::tests::the_second_agent_on_a_gpu_is_refused_and_hears_who_was_first",
        E2E + "bad_input.py::test_two_agents_on_one_gpu",
    ),
    fault(
        37,
        "a task delivered twice, the late report of a former run",
        "one lease holds the task, the report is refused",
        "cantle-store/store: a_claimed_task_is_nobody_elses",
        "cantle-store/store: the_report_of_a_run_that_was_given_up_comes_too_late",
        "cantle-server/flow: a_task_has_one_lease",
    ),
    fault(38, "the server is unreachable for longer than a task runs", "the task continues, its result arrives later, once", RUN + "daemon_delivers_results_after_the_server_was_away"),
    fault(39, "cantle's libraries are replaced by unknown ones while a task runs", "the task keeps its limit; a new one does not start without a limit", disks.other_version, short=True),
    fault(
        40,
        "a hostile tenant: 22 ways past the filter",
        "prevented, or killed by the watchdog; no neighbor is harmed",
        "tests/bypass/test_evasion.py",
        "tests/bypass/test_reach.py",
    ),
    fault(
        41,
        "`kill -9` of server, agent, supervisors and tasks in random order, while disks fill up",
        "no task is lost, none runs twice, each ends with its own result; no GPU memory is left",
        storm.everything_at_once,
        short=True,
    ),
)
