//! What commands take, measured on the recording fake, whose times are known.

mod support;

use moetwin_cuda::exec::fake::FakeHost;
use moetwin_cuda::exec::pace::{EXCHANGE_PS, STAMP_PS, kernel_ps};
use moetwin_cuda::exec::{Choices, CudaExecutor, CudaOptions, RankTimes, Repetitions};
use moetwin_kernels::launch::launches;
use moetwin_models::{Deployment, Op, RankId, Sequence};
use moetwin_runtime::reference::StepInputs;
use moetwin_runtime::weights::SyntheticWeights;
use moetwin_runtime::{Action, Executor, Program};
use std::time::Duration;
use support::{exchanging, model, options, programs, staged};

const OFTEN: Repetitions = Repetitions { replays: 4, eager: 2, windows: 3, choices: Choices::Routed };

fn inputs() -> StepInputs {
    StepInputs { token_ids: vec![1; 8], sequences: vec![Sequence { past: 3, new: 1 }; 8] }
}

/// The times of a decode pass on the ranks that are here, and the program.
fn measured(host: &FakeHost, local: &[u32], deployment: &Deployment, options: CudaOptions) -> (Vec<RankTimes>, Program) {
    let spec = model();
    let (_, decode) = programs(&spec, deployment);
    let ranks = local.iter().map(|r| RankId(*r)).collect();
    let mut executor = CudaExecutor::on(host.clone(), ranks, deployment.ranks(), None, options).unwrap();
    let weights = SyntheticWeights::new(&spec, 1);
    decode.ranks.ids().try_for_each(|rank| executor.load(&decode, rank, &weights)).unwrap();
    let key = executor.prepare(decode.clone()).unwrap();
    let times = executor.measure(key, &inputs(), OFTEN).unwrap();
    // Once more: places of integers are put back, and nothing of the first time is left.
    let again = executor.measure(key, &inputs(), OFTEN).unwrap();
    assert!(times.iter().zip(&again).all(|(a, b)| a.commands == b.commands && a.chosen == b.chosen));
    (times, decode)
}

#[test]
fn commands_take_what_their_kernels_take_and_nothing_of_the_stamps_or_the_host() {
    for deployment in [Deployment { tp: 8, ..Deployment::default() }, exchanging(), staged()] {
        let host = FakeHost::default();
        let (times, program) = measured(&host, &[0, 1, 2, 3, 4, 5, 6, 7], &deployment, options(10, None));
        assert_eq!(host.wrong(), [""; 0], "{deployment:?}");
        assert_eq!(host.open_gpus(), 0);
        assert_eq!(times.iter().map(|t| t.rank).collect::<Vec<_>>(), (0..8).collect::<Vec<_>>());
        for t in &times {
            let commands = &program.ranks[RankId(t.rank)].commands;
            assert_eq!((t.captured_ps.len(), t.eager_ps.len(), t.commands.len()), (4, 2, commands.len()));
            let mut in_a_row = 0;
            for (command, found) in commands.iter().zip(&t.commands) {
                assert_eq!(found.ps.len(), 3);
                let node = &program.graph.nodes[command.id.node];
                match command.action {
                    Action::Compute if !matches!(node.op, Op::Slice { .. }) => {
                        let plan = launches(&program.graph, command.id.node, RankId(t.rank)).unwrap();
                        assert_eq!(found.ps, [plan.launches.iter().map(kernel_ps).sum::<u64>() as i64; 3], "{}", command.id);
                    }
                    Action::Compute => {}
                    Action::Collective { .. } => assert!(found.ps[0] >= EXCHANGE_PS as i64, "{} {:?}", command.id, found.ps),
                    Action::Send { .. } | Action::Receive { .. } => assert_eq!(found.ps, [EXCHANGE_PS as i64; 3]),
                }
                assert_eq!(found.typical_ps(), Some(found.ps[0] as u64));
                in_a_row += found.ps[0] as u64;
            }
            // They add up to the pass on one stream, beside which stands the stamp of a replay.
            assert_eq!(t.one_stream_ps, [in_a_row + STAMP_PS; 4]);
            // Captured, the first stream does what it does and nothing else; launched one by one, the host is waited for as well.
            assert!(t.captured_ps.iter().all(|ps| *ps <= in_a_row + STAMP_PS && *ps < t.eager_ps[0]), "{t:?}");
        }
    }
}

#[test]
fn one_rank_alone_is_measured_with_something_that_stands_in_for_the_others() {
    let deployment = Deployment { tp: 8, ..Deployment::default() };
    for stated_us in [0, 40] {
        let (host, stand_in) = (FakeHost::default(), Some(Duration::from_micros(stated_us)));
        let (times, program) = measured(&host, &[5], &deployment, CudaOptions { stand_in, ..options(10, None) });
        assert_eq!(host.wrong(), [""; 0]);
        assert_eq!(times.len(), 1);
        assert_eq!(host.log().iter().filter(|(rank, _)| *rank != RankId(5)).count(), 0);
        let exchanges = program.ranks[RankId(5)].commands.iter().zip(&times[0].commands).filter(|(c, _)| c.action != Action::Compute);
        let each: Vec<u64> = exchanges.map(|(_, t)| t.ps[0] as u64).collect();
        assert!(!each.is_empty());
        // At least the copy of the rank's own part; the stated time where that is longer.
        assert!(
            each.iter().all(|ps| *ps >= (stated_us * 1_000_000).max(2_000_000) && *ps < stated_us * 1_000_000 + 30_000_000),
            "{each:?}"
        );
    }
}

#[test]
fn what_is_not_captured_has_no_replays() {
    let host = FakeHost::default();
    let (times, _) = measured(&host, &[0], &Deployment::single(), CudaOptions { graphs: false, ..options(10, None) });
    assert!(times[0].captured_ps.is_empty() && times[0].eager_ps.len() == 2);
}

#[test]
fn what_finds_no_room_to_empty_the_cache_with_is_not_measured() {
    let spec = model();
    let (_, decode) = programs(&spec, &Deployment::single());
    let attempt = |memory_bytes: u64| {
        let host = FakeHost::default().with_memory(memory_bytes);
        let mut executor = CudaExecutor::on(host.clone(), vec![RankId(0)], 1, None, options(10, None)).unwrap();
        executor.load(&decode, RankId(0), &SyntheticWeights::new(&spec, 1)).unwrap();
        let key = executor.prepare(decode.clone()).unwrap();
        let found = executor.measure(key, &inputs(), OFTEN).map_err(|e| e.to_string());
        drop(executor);
        assert_eq!((host.wrong(), host.open_gpus()), (Vec::<String>::new(), 0));
        found
    };
    let refused = attempt(128 << 20).unwrap_err();
    for words in ["rank 0", "192 MiB free", "in the cache", "OUT_OF_MEMORY", "--layers"] {
        assert!(refused.contains(words), "{words}: {refused}");
    }
    assert!(attempt(512 << 20).is_ok());
}

#[test]
fn experts_can_be_drawn_instead_of_routed() {
    let host = FakeHost::default();
    let spec = model();
    let (_, decode) = programs(&spec, &Deployment::single());
    let mut executor = CudaExecutor::on(host.clone(), vec![RankId(0)], 1, None, options(10, None)).unwrap();
    executor.load(&decode, RankId(0), &SyntheticWeights::new(&spec, 1)).unwrap();
    let key = executor.prepare(decode.clone()).unwrap();
    // The fake's routers choose nothing but the first expert.
    let routed = executor.measure(key, &inputs(), OFTEN).unwrap().remove(0);
    assert!(!routed.chosen.is_empty() && routed.chosen.iter().all(|(_, ids)| ids.iter().all(|id| *id == 0)), "{:?}", routed.chosen);
    let drawn = executor.measure(key, &inputs(), Repetitions { choices: Choices::Drawn(1000), ..OFTEN }).unwrap().remove(0);
    assert!(drawn.chosen.iter().all(|(_, ids)| ids.iter().any(|id| *id > 0)), "{:?}", drawn.chosen);
    assert_eq!(drawn.commands, routed.commands);
    assert_eq!(host.wrong(), [""; 0]);
}

#[test]
fn times_of_commands_are_spread_to_add_up_unless_they_are_far_off() {
    let command = |ps: [i64; 4]| moetwin_cuda::exec::CommandTimes { ps: ps.to_vec() };
    let mut times = RankTimes { one_stream_ps: vec![1_050, 1_040, 1_060], ..RankTimes::default() };
    times.commands = vec![command([600, 590, 610, 9_000]), command([400, 400, -800, 400]), command([-3, -2, -2, -1])];
    // The middle half counts: 605 and 400; less than nothing is nothing.
    assert_eq!(times.commands.iter().map(|c| c.typical_ps()).collect::<Vec<_>>(), [Some(605), Some(400), Some(0)]);
    assert!((times.scale() - 1_050.0 / 1_005.0).abs() < 1e-9);
    assert_eq!(times.commands_ps(), [Some(632), Some(417), Some(0)]);
    times.one_stream_ps = vec![2_000];
    assert_eq!(times.scale(), 1.0);
    times.one_stream_ps = Vec::new();
    assert_eq!(times.scale(), 1.0);
}
