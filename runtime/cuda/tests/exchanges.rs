//! The exchanges between eight ranks that are not NCCL's alone, on the recording fake: the one-shot all-reduce over mapped windows, what
//! happens where windows cannot be mapped, and buffers of fixed capacity that are too small.

mod support;

use moetwin_cuda::exec::AllReduceBackend;
use moetwin_cuda::exec::CudaOptions;
use moetwin_cuda::exec::fake::{Asked, FakeFault, FakeHost};
use moetwin_cuda::exec::inject::{FaultKind, Injection};
use moetwin_models::{Deployment, RankId};
use moetwin_runtime::Program;
use moetwin_runtime::init::InitPhase;
use moetwin_runtime::reference::ExecuteError;
use std::sync::mpsc::channel;
use support::{exchanging, fused_programs, model, options, programs, serve, summing};

/// How a run ended, and what it remarked.
fn run(host: &FakeHost, deployment: &Deployment, change: impl Fn(&mut CudaOptions)) -> (Result<(), ExecuteError>, Vec<String>) {
    run_programs(host, &programs(&model(), deployment), change)
}

fn run_programs(
    host: &FakeHost,
    programs: &(Program, Program),
    change: impl Fn(&mut CudaOptions),
) -> (Result<(), ExecuteError>, Vec<String>) {
    let (sender, remarks) = channel();
    let mut options = CudaOptions { remarks: Some(sender), ..options(10, None) };
    change(&mut options);
    let spec = model();
    let outcome = serve(host.clone(), (0..8).map(RankId).collect(), None, options, &spec, programs);
    (outcome, remarks.try_iter().collect())
}

fn one_shot(options: &mut CudaOptions) {
    options.all_reduce = AllReduceBackend::OneShot;
}

fn count(host: &FakeHost, rank: u32, wanted: impl Fn(&Asked) -> bool) -> usize {
    host.log().iter().filter(|(r, asked)| r.0 == rank && wanted(asked)).count()
}

#[test]
fn every_rank_maps_every_window_and_all_meet_in_the_kernel() {
    let (by_nccl, host) = (FakeHost::default(), FakeHost::default());
    run(&by_nccl, &summing(), |_| ()).0.unwrap();
    let (outcome, remarks) = run(&host, &summing(), one_shot);
    outcome.unwrap();
    assert_eq!((host.wrong(), host.open_gpus()), (Vec::<String>::new(), 0));
    assert_eq!(remarks.len(), 1, "one group, told once: {remarks:?}");
    assert!(remarks[0].contains("one shot up to 262142 bytes"), "{remarks:?}");
    let sums = |host: &FakeHost, rank| {
        (count(host, rank, |a| *a == Asked::Work("communicate")), count(host, rank, |a| *a == Asked::Meet("all_reduce_one_shot")))
    };
    for rank in 0..8 {
        assert_eq!(count(&host, rank, |a| matches!(a, Asked::Map(_))), 7, "rank {rank} maps all others once, for both programs");
        assert_eq!(count(&host, rank, |a| matches!(a, Asked::Unmap(_))), 7);
        let ((calls, none), (left, met)) = (sums(&by_nccl, rank), sums(&host, rank));
        assert_eq!((none, left + met), (0, calls), "every exchange of rank {rank} has one form");
        assert!(met > left, "the sums of rank {rank}: {met} one-shot, {left} NCCL");
    }
}

#[test]
fn a_rank_that_cannot_map_leaves_all_to_nccl_and_says_so() {
    // Nor may a kernel wait for peers that nothing can stop.
    for host in [FakeHost::default().with_rank_apart(RankId(5)), FakeHost::default().without_host_memory(RankId(5))] {
        let (outcome, remarks) = run(&host, &summing(), one_shot);
        outcome.unwrap();
        assert_eq!((host.wrong(), host.open_gpus()), (Vec::<String>::new(), 0));
        assert!(remarks.len() == 1 && remarks[0].contains("use NCCL, not one-shot: rank 5: "), "{remarks:?}");
        assert!((0..8).all(|r| count(&host, r, |a| matches!(a, Asked::Meet(_))) == 0));
    }
}

/// Calls of NCCL, sums alone, sums with a norm and norms alone that a rank was asked for.
fn forms(host: &FakeHost, rank: u32) -> [usize; 4] {
    [
        count(host, rank, |a| *a == Asked::Work("communicate")),
        count(host, rank, |a| *a == Asked::Meet("all_reduce_one_shot")),
        count(host, rank, |a| *a == Asked::Meet("all_reduce_add_rms_norm")),
        count(host, rank, |a| *a == Asked::Launch("add_rms_norm")),
    ]
}

#[test]
fn a_sum_and_its_norm_are_one_kernel_where_windows_are_mapped_and_two_steps_elsewhere() {
    let fused = fused_programs(&model(), &summing());
    let (apart, host, nccl, unmapped) =
        (FakeHost::default(), FakeHost::default(), FakeHost::default(), FakeHost::default().with_rank_apart(RankId(5)));
    run(&apart, &summing(), one_shot).0.unwrap();
    run_programs(&host, &fused, one_shot).0.unwrap();
    run_programs(&nccl, &fused, |_| ()).0.unwrap();
    let (outcome, remarks) = run_programs(&unmapped, &fused, one_shot);
    outcome.unwrap();
    assert!(remarks.len() == 1 && remarks[0].contains("use NCCL, not one-shot: rank 5: "), "{remarks:?}");
    for rank in 0..8 {
        let ([calls, sums, none, norms], [left, alone, both, zero]) = (forms(&apart, rank), forms(&host, rank));
        assert!(none == 0 && norms > 0 && both > 0, "rank {rank}");
        // Every norm of a sum has gone into the sum; the embedding's sum has none.
        assert_eq!((left, alone + both, zero), (calls, sums, 0), "rank {rank}");
        assert_eq!(both, norms, "rank {rank}");
        // Whoever has no windows sums by NCCL and norms behind it.
        for other in [&nccl, &unmapped] {
            assert_eq!(forms(other, rank), [calls + sums, 0, 0, norms], "rank {rank}");
        }
    }
    for host in [&apart, &host, &nccl, &unmapped] {
        assert_eq!((host.wrong(), host.open_gpus()), (Vec::<String>::new(), 0));
    }
}

#[test]
fn auto_takes_one_shot_over_nvlink_and_nccl_elsewhere() {
    let auto = |host: &FakeHost| run(host, &summing(), |options| options.all_reduce = AllReduceBackend::Auto);
    let met = |host: &FakeHost| count(host, 6, |a| matches!(a, Asked::Meet(_)));
    let (linked, bridged, asked_for) = (FakeHost::default(), FakeHost::default().without_nvlink(), FakeHost::default().without_nvlink());
    let (outcome, remarks) = auto(&linked);
    outcome.unwrap();
    assert!(met(&linked) > 0 && remarks[0].contains("take one shot up to"), "{remarks:?}");
    let (outcome, remarks) = auto(&bridged);
    outcome.unwrap();
    assert!(met(&bridged) == 0 && remarks[0].contains("use NCCL, not one-shot: rank 0: no NVLink"), "{remarks:?}");
    // Whoever names the kernel gets it where memory can be mapped at all.
    run(&asked_for, &summing(), one_shot).0.unwrap();
    assert!(met(&asked_for) > 0);
    for host in [&linked, &bridged, &asked_for] {
        assert_eq!((host.wrong(), host.open_gpus()), (Vec::<String>::new(), 0));
    }
}

#[test]
fn faults_while_windows_are_made_are_named() {
    let mut named = 0;
    for call in 0..9 {
        for kind in [FaultKind::Die, FaultKind::Stall, FaultKind::OutOfMemory] {
            let (rank, host) = (RankId((call * 3 + kind as u32) % 8), FakeHost::default());
            let injection = Injection { rank, phase: InitPhase::Connect, call, kind, or_later: false };
            let (outcome, _) = run(&host, &summing(), |options| {
                one_shot(options);
                options.inject = Some(injection);
            });
            assert_eq!((host.wrong(), host.open_gpus()), (Vec::<String>::new(), 0), "{injection}");
            match outcome {
                Err(ExecuteError::Device { rank: blamed, what }) => {
                    assert_eq!(blamed, rank, "{injection}: {what}");
                    assert!(what.starts_with("phase connect, "), "{injection}: {what}");
                    named += u32::from(what.contains("publish memory") || what.contains("map peers' memory"));
                }
                other => panic!("{injection}: {other:?}"),
            }
        }
    }
    assert!(named >= 15, "{named} faults in making windows");
}

#[test]
fn a_rank_that_does_not_come_to_the_kernel_is_the_one_to_blame() {
    // Its sixtieth kernel hangs: the others wait for it in theirs, and are ended by the abort.
    let host = FakeHost::default().with_stuck_kernel(RankId(3), 60);
    let (outcome, _) = run(&host, &summing(), one_shot);
    match outcome {
        Err(ExecuteError::Device { rank, what }) => {
            assert!(rank == RankId(3) && what.contains("its GPU did not stop"), "rank {}: {what}", rank.0);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(host.open_gpus(), 0);
    let abandoned: Vec<u32> = host.log().iter().filter(|(_, a)| *a == Asked::Abandon).map(|(r, _)| r.0).collect();
    assert_eq!(abandoned, [3]);
}

#[test]
fn an_abort_ends_waits_of_kernels_whatever_their_ranks_threads_are_stuck_in() {
    // Its thread never comes back from the call, so it cannot tell its own kernels.
    let host = FakeHost::default();
    let injection = Injection { rank: RankId(3), phase: InitPhase::WarmUp, call: 20, kind: FaultKind::Hang, or_later: false };
    let (outcome, _) = run(&host, &summing(), |options| {
        one_shot(options);
        options.inject = Some(injection);
    });
    assert!(matches!(&outcome, Err(ExecuteError::Device { rank: RankId(3), .. })), "{outcome:?}");
    assert_eq!(host.stopped(), (0..8).map(RankId).collect::<Vec<_>>());
    assert_eq!(count(&host, 3, |a| *a == Asked::Abort), 0);
    host.release();
}

#[test]
fn kernels_are_loaded_before_any_rank_waits_for_others() {
    let fused = fused_programs(&model(), &summing());
    for (programs, capacity) in [(programs(&model(), &summing()), None), (programs(&model(), &exchanging()), Some(1)), (fused, None)] {
        let host = FakeHost::default();
        run_programs(&host, &programs, |options| {
            one_shot(options);
            options.expert_capacity = capacity;
        })
        .0
        .unwrap();
        for rank in 0..8 {
            let mut known = Vec::new();
            let mut waited = false;
            for (_, asked) in host.log().into_iter().filter(|(r, _)| r.0 == rank) {
                match asked {
                    Asked::Ready(kernel) => known.push(kernel),
                    Asked::Meet(_) | Asked::Work("communicate") => waited = true,
                    Asked::Launch(kernel) => assert!(!waited || known.contains(&kernel), "rank {rank} loads {kernel} at its first launch"),
                    _ => {}
                }
            }
            assert!(waited && known.contains(&"copy_columns"), "rank {rank}: {known:?}");
        }
    }
}

#[test]
fn what_the_kernel_notes_of_a_late_peer_is_told() {
    let fault = FakeFault { rank: RankId(2), kernel: "all_reduce_one_shot", what: 1, member: 6, count: 0 };
    let (outcome, _) = run(&FakeHost::default().with_fault(fault), &summing(), one_shot);
    match outcome {
        Err(ExecuteError::Device { rank: RankId(2), what }) => {
            assert!(what.starts_with("phase serve, command n") && what.contains("rank 6 did not come"), "{what}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_late_peer_is_told_of_a_sum_with_a_norm_as_of_one_without() {
    let fault = FakeFault { rank: RankId(4), kernel: "all_reduce_add_rms_norm", what: 1, member: 7, count: 0 };
    let host = FakeHost::default().with_fault(fault);
    match run_programs(&host, &fused_programs(&model(), &summing()), one_shot).0 {
        Err(ExecuteError::Device { rank: RankId(4), what }) => {
            assert!(what.starts_with("phase serve, command n") && what.contains("norm") && what.contains("rank 7 did not come"), "{what}");
        }
        other => panic!("{other:?}"),
    }
    // A rank whose kernel hangs on the way there is the one to blame, and the others' waits are ended.
    let host = FakeHost::default().with_stuck_kernel(RankId(3), 60);
    match run_programs(&host, &fused_programs(&model(), &summing()), one_shot).0 {
        Err(ExecuteError::Device { rank, what }) => assert!(rank == RankId(3) && what.contains("its GPU did not stop"), "{what}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(host.open_gpus(), 0);
}

#[test]
fn rows_are_packed_where_the_buffers_are_smaller_than_all_rows() {
    let kernels = ["dispatch_lists", "dispatch_pack", "dispatch_unpack", "combine_pack", "combine_sum"];
    let launched = |host: &FakeHost, kernel| count(host, 4, |a| *a == Asked::Launch(kernel));
    let (packed, whole) = (FakeHost::default(), FakeHost::default());
    // A rank has two rows in prefill and one in decode.
    run(&packed, &exchanging(), |o| o.expert_capacity = Some(1)).0.unwrap();
    run(&whole, &exchanging(), |o| o.expert_capacity = Some(2)).0.unwrap();
    for host in [&packed, &whole] {
        assert_eq!((host.wrong(), host.open_gpus()), (Vec::<String>::new(), 0));
    }
    for kernel in kernels {
        assert_eq!(launched(&packed, kernel), 1, "{kernel}: the prefill's only layer of experts");
        assert_eq!(launched(&whole, kernel), 0, "{kernel}: there is room for all rows");
    }
}

#[test]
fn a_full_buffer_ends_the_run_with_the_rank_the_command_the_rows_and_the_flag() {
    let fault = FakeFault { rank: RankId(6), kernel: "dispatch_lists", what: 2, member: 1, count: 2 };
    let (outcome, _) = run(&FakeHost::default().with_fault(fault), &exchanging(), |o| o.expert_capacity = Some(1));
    match outcome {
        Err(ExecuteError::Device { rank: RankId(6), what }) => {
            assert!(what.starts_with("phase serve, command n") && what.contains("received"), "{what}");
            let told = "2 rows chose experts of rank 1, and there is room for 1; raise --ep-capacity to 2";
            assert!(what.contains(told), "{what}");
        }
        other => panic!("{other:?}"),
    }
}
