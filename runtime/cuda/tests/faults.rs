//! A rank that dies, stalls, hangs or runs out of memory, at every driver call of start-up and service, among eight ranks on the recording
//! fake: the run ends within its deadline and names rank and phase, every rank ends in order, and nothing is left.

mod support;

use moetwin_cuda::exec::fake::{Asked, FakeHost};
use moetwin_cuda::exec::gpu::Host;
use moetwin_cuda::exec::inject::{FaultKind, Injection, PHASES};
use moetwin_models::{Deployment, RankId};
use moetwin_runtime::init::InitPhase;
use moetwin_runtime::reference::ExecuteError;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use support::{exchanging, model, programs, serve_here, staged};

/// Of every run here (`serve_here`).
const DEADLINE: Duration = Duration::from_secs(10);

/// Every allocation freed once, everything ended in the order graphs, communicators, memory, context, and nothing worked after an abort.
fn check_end(host: &FakeHost, what: &str) {
    assert_eq!(host.wrong(), [""; 0], "{what}");
    assert_eq!(host.open_gpus(), 0, "{what}: GPUs are left open");
    let mut by_rank: BTreeMap<RankId, Vec<Asked>> = BTreeMap::new();
    host.log().into_iter().for_each(|(rank, asked)| by_rank.entry(rank).or_default().push(asked));
    for (rank, asked) in by_rank {
        let allocated: BTreeSet<_> = asked.iter().filter_map(|a| if let Asked::Allocate(x) = a { Some(*x) } else { None }).collect();
        let freed: Vec<_> = asked.iter().filter_map(|a| if let Asked::Free(x) = a { Some(*x) } else { None }).collect();
        assert_eq!(freed.len(), allocated.len(), "{what}: rank {}", rank.0);
        assert_eq!(freed.into_iter().collect::<BTreeSet<_>>(), allocated, "{what}: rank {}", rank.0);
        let order = |a: &Asked| match a {
            Asked::Destroy(_) => 1,
            Asked::Disconnect(_) => 2,
            Asked::Free(_) => 3,
            Asked::Close => 4,
            _ => 0,
        };
        let ends: Vec<i32> = asked.iter().map(order).skip_while(|o| *o == 0).collect();
        assert!(ends.is_sorted(), "{what}: rank {} ends in the order {ends:?}", rank.0);
        assert_eq!(asked.last(), Some(&Asked::Close), "{what}: rank {}", rank.0);
    }
}

/// Whether the fault happened; everything that must hold if so.
fn check_fault(injection: Injection, deployment: &Deployment) -> bool {
    let (spec, host) = (model(), FakeHost::default());
    let programs = programs(&spec, deployment);
    let begin = Instant::now();
    let outcome = serve_here(&host, Some(injection), &spec, &programs);
    let what = injection.to_string();
    // By the fake's clock, which passes by seconds: a run ends soon after the fault, or after the deadline where nothing but time tells.
    let soon = Duration::from_secs(2);
    let limit = match injection.kind {
        FaultKind::Die | FaultKind::OutOfMemory => soon,
        FaultKind::Stall => DEADLINE + soon,
        // Its thread is waited for twice, from without and after an abort.
        FaultKind::Hang => DEADLINE + soon * 2,
    };
    assert!(outcome.is_ok() || host.now() <= limit, "{what} ended after {:?}", host.now());
    // A hung call is held until the run has ended without it; then its rank must end in order too.
    let hangs = injection.kind == FaultKind::Hang;
    if hangs {
        assert_eq!(host.open_gpus(), u32::from(outcome.is_err() && injection.phase != InitPhase::Open), "{what}");
        host.release();
        while host.open_gpus() > 0 && begin.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert!(begin.elapsed() < Duration::from_secs(20), "{what} took {:?}", begin.elapsed());
    check_end(&host, &what);
    match outcome {
        Ok(()) => false,
        Err(ExecuteError::Device { rank, what: message }) => {
            let words = match injection.kind {
                FaultKind::Die => "died in",
                FaultKind::OutOfMemory => "CUDA_ERROR_OUT_OF_MEMORY",
                FaultKind::Stall | FaultKind::Hang => "no answer within 10s",
            };
            assert_eq!(rank, injection.rank, "{what}: {message}");
            assert!(message.starts_with(&format!("phase {}, ", injection.phase)), "{what}: {message}");
            assert!(message.contains(words), "{what}: {message}");
            let command = message.split(", ").nth(1).unwrap_or_default();
            assert!(!command.is_empty() && !command.starts_with("idle"), "{what}: {message}");
            true
        }
        Err(e) => panic!("{what}: {e}"),
    }
}

#[test]
fn a_run_without_faults_ends_in_order() {
    for deployment in [exchanging(), staged()] {
        let (spec, host) = (model(), FakeHost::default());
        serve_here(&host, None, &spec, &programs(&spec, &deployment)).unwrap();
        check_end(&host, "no fault");
        for rank in (0..8).map(RankId) {
            let of = |wanted: fn(&Asked) -> bool| host.log().iter().filter(|(r, a)| *r == rank && wanted(a)).count();
            assert_eq!(of(|a| matches!(a, Asked::Captured(_))), 1);
            assert_eq!(of(|a| matches!(a, Asked::Replay(0))), 2, "the captured pass and the one after it");
            assert!(of(|a| matches!(a, Asked::Disconnect(_))) > 0 && of(|a| matches!(a, Asked::Abort)) == 0);
        }
    }
}

/// Every call of every phase with every kind of fault, on a rank that the call's number chooses.
fn check_all(deployment: &Deployment) -> BTreeMap<InitPhase, u32> {
    let mut calls = BTreeMap::new();
    std::thread::scope(|scope| {
        let mut kinds = Vec::new();
        for kind in FaultKind::ALL {
            kinds.push(scope.spawn(move || {
                let mut counted = BTreeMap::new();
                for phase in PHASES {
                    let mut missed = 0;
                    for call in 0.. {
                        // Ranks of different stages and sizes make different numbers of calls: the phase is over when no rank makes more.
                        let rank = RankId((call * 5 + kind as u32 * 3 + missed) % 8);
                        if check_fault(Injection { rank, phase, call, kind, or_later: false }, deployment) {
                            missed = 0;
                            *counted.entry(phase).or_insert(0) += 1;
                        } else {
                            missed += 1;
                            if missed == 2 {
                                break;
                            }
                        }
                    }
                }
                counted
            }));
        }
        for kind in kinds {
            let counted = kind.join().unwrap();
            assert_eq!(counted.keys().copied().collect::<Vec<_>>(), PHASES, "every phase was hit");
            calls = counted;
        }
    });
    calls
}

#[test]
fn every_fault_at_every_call_ends_the_run_and_is_named() {
    let calls = check_all(&exchanging());
    assert!(calls.values().sum::<u32>() > 200, "{calls:?}");
}

#[test]
fn seeded_faults_of_a_pipeline_end_the_run() {
    for seed in 0..64 {
        let injection = Injection::seeded(seed, 8);
        let (spec, host) = (model(), FakeHost::default());
        let outcome = serve_here(&host, Some(injection), &spec, &programs(&spec, &staged()));
        host.release();
        match outcome {
            Err(ExecuteError::Device { rank, what }) => assert_eq!(rank, injection.rank, "seed {seed}, {injection}: {what}"),
            other => panic!("seed {seed}, {injection}: {other:?}"),
        }
    }
}

#[test]
fn a_kernel_that_never_ends_is_found_by_what_its_gpu_still_runs() {
    let spec = model();
    let programs = programs(&spec, &exchanging());
    let mut commands = BTreeSet::new();
    for (rank, kernel) in [(3, 0), (6, 5), (0, 17), (7, 60), (2, 90)] {
        let host = FakeHost::default().with_stuck_kernel(RankId(rank), kernel);
        match serve_here(&host, None, &spec, &programs) {
            Err(ExecuteError::Device { rank: named, what }) => {
                assert_eq!(named.0, rank, "kernel {kernel}: {what}");
                assert!(what.contains("its GPU did not stop"), "{what}");
                commands.insert(what);
            }
            other => panic!("{other:?}"),
        }
        // Freeing would wait for the kernel: its memory is left to the end of the process, all other ranks end in order.
        assert_eq!(host.open_gpus(), 0);
        assert_eq!(host.log().iter().filter(|(_, a)| *a == Asked::Abandon).map(|(r, _)| r.0).collect::<Vec<_>>(), [rank]);
    }
    assert!(commands.iter().filter(|c| c.starts_with("phase load, weight ")).count() >= 3, "{commands:?}");
    assert_eq!(commands.len(), 5, "the command named does not follow the kernel: {commands:?}");
}

#[test]
fn memory_that_really_runs_out_is_reported() {
    let (spec, host) = (model(), FakeHost::default().with_memory(40_000));
    match serve_here(&host, None, &spec, &programs(&spec, &exchanging())) {
        Err(ExecuteError::Device { what, .. }) => assert!(what.contains("CUDA_ERROR_OUT_OF_MEMORY"), "{what}"),
        other => panic!("{other:?}"),
    }
    check_end(&host, "small memory");
}
