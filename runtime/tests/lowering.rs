//! What lowering promises: every order that streams and events allow gives the same values, and nothing it emits is superfluous.

use moetwin_models::{AllToAll, BuildOptions, Deployment, ModelSpec, Op, Phase, RankId, Sequence, Step, config, plan};
use moetwin_runtime::reference::{ExecuteError, Order, ReferenceExecutor, Schedule, StepInputs};
use moetwin_runtime::verify::{ProgramFault, verify};
use moetwin_runtime::weights::{CheckpointWeights, Layers};
use moetwin_runtime::{Action, LowerOptions, Place, Program, lower};
use std::path::PathBuf;

const SEQUENCES: [Sequence; 3] = [Sequence { past: 0, new: 3 }, Sequence { past: 0, new: 1 }, Sequence { past: 0, new: 4 }];

fn model() -> (ModelSpec, CheckpointWeights) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/tiny-deepseek-v3");
    let spec = config::read(&std::fs::read_to_string(folder.join("config.json")).unwrap(), "tiny").unwrap();
    let weights = CheckpointWeights::open(&folder, &spec, Layers::All).unwrap();
    (spec, weights)
}

fn program(spec: &ModelSpec, deployment: &Deployment) -> Program {
    let step = Step { phase: Phase::Verify(4), sequences: SEQUENCES.to_vec(), logits: moetwin_models::LogitsRows::All };
    lower(plan(spec, &step, deployment, &BuildOptions::default()).unwrap(), LowerOptions::default()).unwrap()
}

fn run(program: &Program, weights: &CheckpointWeights, order: Order) -> Result<Vec<u32>, ExecuteError> {
    let mut executor = ReferenceExecutor::<f32>::new(program.graph.deployment.ranks(), 8, order);
    for (rank, _) in program.ranks.iter() {
        executor.load_rank(program, rank, weights)?;
        executor.allocate_kv(program, rank);
    }
    let inputs = StepInputs { token_ids: vec![5, 9, 80, 3, 7, 7, 120, 1], sequences: SEQUENCES.to_vec() };
    let values = executor.step(program, &inputs, order)?;
    let logits = values.iter().find(|v| v.name == "logits").unwrap();
    Ok(logits.value.as_real().unwrap().iter().map(|x| x.to_bits()).collect())
}

fn deployments() -> Vec<Deployment> {
    let d = Deployment::default();
    vec![
        d.clone(),
        Deployment { tp: 2, ..d.clone() },
        Deployment { tp: 2, pp: 2, ..d.clone() },
        Deployment { tp: 2, ep: 2, dp_attention: 2, a2a: AllToAll::Nccl, ..d },
    ]
}

#[test]
fn every_legal_order_gives_the_same_bits() {
    let (spec, weights) = model();
    for d in deployments() {
        let program = program(&spec, &d);
        verify(&program).unwrap();
        let expected = run(&program, &weights, Order::Launch).unwrap();
        assert!(expected.iter().all(|b| !f32::from_bits(*b).is_nan()));
        for seed in 0..8 {
            assert_eq!(run(&program, &weights, Order::Seeded(seed)).unwrap(), expected, "seed {seed}, {d:?}");
        }
    }
}

/// Sums over ranks, alone and with a norm, that a rank issues.
fn sums(program: &Program) -> (usize, usize) {
    let of = |is: fn(&Op) -> bool| program.ranks[RankId(0)].commands.iter().filter(|c| is(&program.graph.nodes[c.id.node].op)).count();
    (of(|op| matches!(op, Op::AllReduce { .. })), of(|op| matches!(op, Op::AllReduceAddRmsNorm { .. })))
}

#[test]
fn sums_are_fused_with_norms_where_that_is_asked_for_and_the_kernel_takes_them() {
    let (spec, weights) = model();
    for d in deployments() {
        let step = |rows| Step { phase: Phase::Verify(rows), sequences: SEQUENCES.to_vec(), logits: moetwin_models::LogitsRows::All };
        let graph = plan(&spec, &step(4), &d, &BuildOptions::default()).unwrap();
        let fused = lower(graph, LowerOptions { fuse_sums: true, ..LowerOptions::default() }).unwrap();
        verify(&fused).unwrap();
        moetwin_models::verify(&fused.graph).unwrap();
        let plain = program(&spec, &d);
        assert_eq!(sums(&plain).0, sums(&fused).0 + sums(&fused).1, "{d:?}");
        let commands = |p: &Program| p.ranks[RankId(0)].commands.len();
        assert_eq!(commands(&plain) - commands(&fused), sums(&fused).1, "{d:?}");
        assert_eq!(sums(&fused).1 > 0, d.tp == 2 && d.dp_attention == 1, "{d:?}");
        // No bit changes, in whatever order commands run.
        let expected = run(&plain, &weights, Order::Launch).unwrap();
        for order in [Order::Launch, Order::Seeded(1), Order::Seeded(2), Order::Seeded(3)] {
            assert_eq!(run(&fused, &weights, order).unwrap(), expected, "{d:?}");
        }
    }
    // A long prompt's sums are more than the kernel takes.
    let long = Step::uniform(Phase::Prefill, 1, 1 << 16);
    let graph = plan(&spec, &long, &Deployment { tp: 2, ..Deployment::default() }, &BuildOptions::default()).unwrap();
    assert_eq!(sums(&lower(graph, LowerOptions { fuse_sums: true, ..LowerOptions::default() }).unwrap()).1, 0);
}

#[test]
fn every_wait_is_necessary_and_its_absence_changes_values() {
    let (spec, weights) = model();
    let program = program(&spec, &Deployment { tp: 2, ..Deployment::default() });
    let expected = run(&program, &weights, Order::Launch).unwrap();
    let mut removed = 0;
    for (rank, rp) in program.ranks.iter() {
        for i in 0..rp.commands.len() {
            for w in 0..rp.commands[i].waits.len() {
                let mut broken = program.clone();
                broken.ranks[rank].commands[i].waits.remove(w);
                let faults = verify(&broken).unwrap_err();
                assert!(faults.iter().all(|f| matches!(f, ProgramFault::Unordered { .. })), "{faults:?}");
                let differs = |seed| run(&broken, &weights, Order::Seeded(seed)).map_or(true, |bits| bits != expected);
                assert!((0..64).any(differs), "rank {rank} command {i} without wait {w} gave the same values in 64 orders");
                removed += 1;
            }
        }
    }
    assert!(removed >= 8, "the shared experts of three layers on two ranks need waits, {removed} found");
}

#[test]
fn collectives_issued_in_another_order_deadlock() {
    let (spec, weights) = model();
    let mut program = program(&spec, &Deployment { tp: 2, ..Deployment::default() });
    let rank = moetwin_models::RankId(1);
    let collective = |c: &moetwin_runtime::Command| matches!(c.action, Action::Collective { .. });
    let found: Vec<usize> = program.ranks[rank].commands.iter().enumerate().filter(|(_, c)| collective(c)).map(|(i, _)| i).collect();
    program.ranks[rank].commands.swap(found[0], found[1]);
    let faults = verify(&program).unwrap_err();
    assert!(faults.iter().any(|f| matches!(f, ProgramFault::CollectiveMismatch { .. })), "{faults:?}");
    match run(&program, &weights, Order::Launch) {
        Err(ExecuteError::Deadlock(d)) => assert_eq!(d.waiting.len(), 4, "two streams on two ranks: {d}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_lost_receive_is_a_fault_and_a_deadlock() {
    let (spec, _) = model();
    let mut program = program(&spec, &Deployment { pp: 2, ..Deployment::default() });
    let rank = moetwin_models::RankId(1);
    let at = program.ranks[rank].commands.iter().position(|c| matches!(c.action, Action::Receive { .. })).unwrap();
    program.ranks[rank].commands.remove(at);
    let faults = verify(&program).unwrap_err();
    assert!(faults.iter().any(|f| matches!(f, ProgramFault::SendMismatch { .. })), "{faults:?}");
    let mut schedule = Schedule::new(&program, Order::Launch);
    let end = loop {
        match schedule.next_firing() {
            Ok(Some(_)) => {}
            other => break other,
        }
    };
    assert!(end.is_err());
}

#[test]
fn the_arena_is_shared_over_time() {
    let (spec, _) = model();
    let program = program(&spec, &Deployment::default());
    let rp = &program.ranks[moetwin_models::RankId(0)];
    let arena = |p: Place| matches!(p, Place::Arena { .. });
    let total: u64 = rp.buffers.iter().filter(|(_, b)| arena(b.place)).map(|(_, b)| b.bytes).sum();
    assert!(rp.arena_bytes * 3 < total, "{} bytes of arena for {total} bytes of activations", rp.arena_bytes);
}

/// Whether every two accesses of the same bytes, one of them a write, are ordered: by reachability over all pairs of commands.
fn ordered_naively(rp: &moetwin_runtime::RankProgram) -> bool {
    let n = rp.commands.len();
    let mut before = vec![vec![false; n]; n];
    for (i, c) in rp.commands.iter().enumerate() {
        let edges: Vec<usize> =
            (0..i).filter(|&j| rp.commands[j].stream == c.stream || rp.commands[j].records.is_some_and(|e| c.waits.contains(&e))).collect();
        for j in edges {
            let known = before[j].clone();
            before[i].iter_mut().zip(known).for_each(|(mine, theirs)| *mine |= theirs);
            before[i][j] = true;
        }
    }
    let range = |b: moetwin_runtime::BufferId| match rp.buffers[b].place {
        Place::Arena { offset } => Some(offset..offset + rp.buffers[b].bytes),
        _ => None,
    };
    let touches = |i: usize| rp.commands[i].reads.iter().map(|b| (*b, false)).chain(rp.commands[i].writes.iter().map(|b| (*b, true)));
    (0..n).all(|i| {
        (0..i).all(|j| {
            before[i][j]
                || touches(i).all(|(a, wa)| {
                    touches(j).all(|(b, wb)| {
                        let overlap = a == b || matches!((range(a), range(b)), (Some(x), Some(y)) if x.start < y.end && y.start < x.end);
                        !overlap || !(wa || wb)
                    })
                })
        })
    })
}

#[test]
fn the_verifier_agrees_with_all_pairs_reachability() {
    use rand_chacha::rand_core::{Rng, SeedableRng};
    let (spec, _) = model();
    let whole = program(&spec, &Deployment::default());
    let rank = moetwin_models::RankId(0);
    let (mut sound, mut broken) = (0, 0);
    for seed in 0..60 {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
        let mut p = whole.clone();
        for _ in 0..rng.next_u64() % 3 {
            let buffers = p.ranks[rank].buffers.len() as u64;
            let id = moetwin_runtime::BufferId((rng.next_u64() % buffers) as u32);
            if let Place::Arena { offset } = &mut p.ranks[rank].buffers[id].place {
                *offset = (rng.next_u64() % 64) * 256;
            }
            let waiting: Vec<usize> =
                p.ranks[rank].commands.iter().enumerate().filter(|(_, c)| !c.waits.is_empty()).map(|(i, _)| i).collect();
            if rng.next_u64() % 2 == 0 && !waiting.is_empty() {
                let at = waiting[(rng.next_u64() % waiting.len() as u64) as usize];
                p.ranks[rank].commands[at].waits.clear();
            }
        }
        let naive = ordered_naively(&p.ranks[rank]);
        assert_eq!(verify(&p).is_ok(), naive, "seed {seed}");
        if naive { sound += 1 } else { broken += 1 }
    }
    assert!(sound >= 10 && broken >= 10, "{sound} sound and {broken} broken programs are too few to tell");
}
