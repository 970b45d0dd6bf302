use super::samples::*;
use super::*;
use moetwin_runtime::{Action, GroupId};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// `(start, end)` of each command, by rank and index.
fn times(trace: &SimTrace) -> BTreeMap<(u32, u32), (u64, u64)> {
    let on_stream = trace.spans.iter().filter(|(_, s)| s.track != Track::Host);
    on_stream.map(|(_, s)| ((s.rank.0, s.index.unwrap()), (s.start.as_ps(), s.end.as_ps()))).collect()
}

#[test]
fn a_captured_pass_costs_one_launch_and_at_least_a_floor_a_node() {
    let trace = run(&[vec![compute(0, 50), compute(0, 1)]], &[], CAPTURED, 1).unwrap();
    assert_eq!(times(&trace), BTreeMap::from([((0, 0), (100, 150)), ((0, 1), (150, 153))]));
    assert_eq!(trace.total, Duration::from_ps(153));
}

#[test]
fn an_eager_pass_is_launched_command_by_command() {
    // The second kernel is launched at 14, long after the first has ended.
    let trace = run(&[vec![compute(0, 4), compute(0, 4), reduce(0, 5, 0)]], &[&[0]], EAGER, 1).unwrap();
    assert_eq!(times(&trace), BTreeMap::from([((0, 0), (7, 11)), ((0, 1), (14, 18)), ((0, 2), (25, 30))]));
}

#[test]
fn a_framework_takes_its_time_for_every_kernel() {
    let slow = HostCosts { eager_call: Duration::from_ps(9), ..EAGER };
    // 9 for a kernel instead of 7, 27 for three of them, but 11 for the collective as before.
    let three = Line { kernels: 3, ..compute(0, 4) };
    let trace = run(&[vec![compute(0, 4), three, reduce(0, 5, 0)]], &[&[0]], slow, 1).unwrap();
    assert_eq!(times(&trace), BTreeMap::from([((0, 0), (9, 13)), ((0, 1), (36, 45)), ((0, 2), (47, 52))]));
}

#[test]
fn kernels_that_the_host_launches_take_the_device_longer() {
    let three = Line { kernels: 3, ..compute(0, 4) };
    let lines = [vec![compute(0, 4), three, reduce(0, 5, 0)]];
    let slow = |host: HostCosts| times(&run(&lines, &[&[0]], HostCosts { eager_gap: Duration::from_ps(2), ..host }, 1).unwrap());
    // 2 more for a kernel, 6 for three, nothing for the exchange, and nothing for nodes of a graph.
    assert_eq!(slow(EAGER), BTreeMap::from([((0, 0), (7, 13)), ((0, 1), (28, 43)), ((0, 2), (43, 48))]));
    assert_eq!(slow(CAPTURED), times(&run(&lines, &[&[0]], CAPTURED, 1).unwrap()));
}

#[test]
fn an_exchange_keeps_arrival_and_transfer_apart() {
    let trace = run(&[vec![reduce(0, 10, 0)], vec![compute(0, 40), reduce(0, 20, 0)]], &[&[0, 1]], CAPTURED, 1).unwrap();
    assert_eq!(times(&trace), BTreeMap::from([((0, 0), (100, 160)), ((1, 0), (100, 140)), ((1, 1), (140, 160))]));
    let exchange = &trace.exchanges.as_slice()[0];
    // The larger message of the two counts; rank 1 came last.
    assert_eq!((exchange.message_bytes, exchange.ready, exchange.last), (20, Time::from_ps(140), 1));
    assert_eq!(trace.ready(exchange.spans[0]), Some(Time::from_ps(140)));
}

#[test]
fn events_order_streams_and_streams_overlap() {
    let lines = vec![
        Line { records: Some(0), ..compute(0, 10) },
        Line { waits: vec![0], records: Some(1), ..compute(1, 30) },
        compute(0, 20),
        Line { waits: vec![1], ..compute(0, 5) },
    ];
    let trace = run(std::slice::from_ref(&lines), &[], CAPTURED, 1).unwrap();
    let expected = [((0, 0), (100, 110)), ((0, 1), (110, 140)), ((0, 2), (110, 130)), ((0, 3), (140, 145))];
    assert_eq!(times(&trace), BTreeMap::from(expected));
    // Where waiting for another stream costs something, both who waits take longer; without a graph there is nothing that it costs.
    let host = HostCosts { join: Duration::from_ps(6), ..CAPTURED };
    let joined = times(&run(std::slice::from_ref(&lines), &[], host, 1).unwrap());
    assert_eq!((joined[&(0, 1)], joined[&(0, 3)]), ((110, 146), (146, 157)));
    let eager = |join| times(&run(std::slice::from_ref(&lines), &[], HostCosts { join, ..EAGER }, 1).unwrap());
    assert_eq!(eager(Duration::from_ps(6)), eager(Duration::ZERO));
    let last = trace.spans.as_slice().iter().rfind(|s| s.track != Track::Host).unwrap();
    assert!(matches!(last.cause, Cause::Span(cause) if trace.spans[cause].index == Some(1)));
}

#[test]
fn passes_follow_each_other_after_the_host_has_waited() {
    let ranks = [vec![compute(0, 50), reduce(0, 10, 0)], vec![reduce(0, 10, 0)]];
    let one = run(&ranks, &[&[0, 1]], CAPTURED, 1).unwrap();
    let three = run(&ranks, &[&[0, 1]], CAPTURED, 3).unwrap();
    assert_eq!(three.total, one.total * 3);
    assert_eq!((three.step_time(), three.exchanges.len()), (one.total, 3));
    let none = run(&ranks, &[&[0, 1]], CAPTURED, 0).unwrap();
    assert_eq!((none.total, none.spans.len()), (Duration::ZERO, 0));
}

#[test]
fn a_full_launch_queue_blocks_the_host() {
    let lines: Vec<Line> = (0..1500).map(|_| compute(0, 1000)).collect();
    let trace = run(&[lines], &[], EAGER, 1).unwrap();
    assert_eq!(trace.total, Duration::from_ps(7 + 1500 * 1000));
    let waits = trace.spans.as_slice().iter().filter(|s| s.kind == SpanKind::HostWait).count();
    // 1024 launches go ahead at once; from then on each waits for one to end.
    assert!((450..480).contains(&waits), "{waits}");
}

#[test]
fn a_hang_names_who_waits_for_whom() {
    let error = run(&[vec![reduce(0, 1, 0)], vec![reduce(0, 1, 1)], vec![reduce(0, 1, 0)]], &[&[0, 1, 2]], CAPTURED, 1).unwrap_err();
    let SimError::Deadlock { count, stuck, .. } = &error else { panic!("{error}") };
    assert_eq!(*count, 3);
    assert_eq!(stuck[0].waits_for, WaitsFor::Ranks(vec![RankId(1)]));
    assert_eq!(stuck[1].waits_for, WaitsFor::Ranks(vec![RankId(0), RankId(2)]));
    assert!(error.to_string().contains("n1/r0 on s0 waits for r1"), "{error}");
    let error = run(&[vec![Line { waits: vec![3], ..compute(0, 1) }]], &[], EAGER, 1).unwrap_err();
    assert!(error.to_string().contains("e3, which nobody recorded"), "{error}");
    let send = |to| Line { action: Action::Send { to: RankId(to) }, ..compute(0, 1) };
    let error = run(&[vec![send(1)], vec![send(0)]], &[], CAPTURED, 1).unwrap_err();
    assert!(error.to_string().contains("n3/r0 on s0 waits for r1; n3/r1 on s0 waits for r0"), "{error}");
}

#[test]
fn programs_that_lead_nowhere_are_refused() {
    type Refused = (&'static str, Vec<Vec<Line>>, Vec<&'static [u32]>);
    let cases: [Refused; 6] = [
        ("no group", vec![vec![reduce(0, 1, 0)]], vec![]),
        ("no member", vec![vec![reduce(0, 1, 0)], vec![]], vec![&[1]]),
        ("there are 1 ranks", vec![vec![]], vec![&[0, 1]]),
        ("member twice", vec![vec![]], vec![&[0, 0]]),
        ("no other rank", vec![vec![Line { action: Action::Send { to: RankId(0) }, ..compute(0, 1) }]], vec![]),
        ("twice", vec![vec![reduce(0, 1, 0), reduce(1, 1, 0)], vec![]], vec![&[0, 1]]),
    ];
    for (expected, ranks, groups) in cases {
        let error = run(&ranks, &groups, CAPTURED, 1).unwrap_err();
        assert!(matches!(&error, SimError::Program(m) if m.contains(expected)), "{expected}: {error}");
    }
    let (mut program, priced) = program(&[vec![reduce(0, 1, 0)], vec![reduce(0, 1, 0)]], &[&[0, 1]]);
    let mut commands = program.ranks[RankId(1)].commands.clone();
    commands[0].id.node = ALL_GATHER;
    program.ranks[RankId(1)].commands = commands;
    let error = execute(&program, &priced, &[0, 1], CAPTURED, 1, &mut Fixed).unwrap_err();
    assert!(error.to_string().contains("AllGather"), "{error}");
    assert!(matches!(execute(&program, &priced, &[0, 1], CAPTURED, u32::MAX, &mut Fixed), Err(SimError::Program(_))));
}

/// The naive twin: start and end of every command from the definition alone, by repeating until nothing changes. Captured passes
/// of commands that share nothing. `None` where commands are left over.
fn naive(program: &Program, priced: &PricedRanks) -> Option<BTreeMap<(u32, u32), (u64, u64)>> {
    let mut done: BTreeMap<(u32, u32), (u64, u64)> = BTreeMap::new();
    let total: usize = program.ranks.iter().map(|(_, r)| r.commands.len()).sum();
    // When a command could start: its launch, its predecessor on the stream, its events. `None` if something is still unknown.
    let ready = |done: &BTreeMap<(u32, u32), (u64, u64)>, rank: RankId, index: usize| -> Option<u64> {
        let commands = &program.ranks[rank].commands;
        let mut at = CAPTURED.graph_launch.as_ps();
        if let Some(before) = (0..index).rev().find(|&j| commands[j].stream == commands[index].stream) {
            at = at.max(done.get(&(rank.0, before as u32))?.1);
        }
        for event in &commands[index].waits {
            // Recorded once: by the first to end.
            let ends = commands.iter().enumerate().filter(|(_, c)| c.records == Some(*event)).map(|(j, _)| done.get(&(rank.0, j as u32)));
            at = at.max(ends.flatten().map(|(_, end)| *end).min()?);
        }
        Some(at)
    };
    let count = |rank: RankId, until: usize, of: &dyn Fn(&Action) -> bool| {
        program.ranks[rank].commands[..until].iter().filter(|c| of(&c.action)).count()
    };
    let partners = |rank: RankId, index: usize| -> Option<Vec<(RankId, usize)>> {
        let nth = |rank: RankId, n: usize, of: &dyn Fn(&Action) -> bool| {
            program.ranks[rank].commands.iter().enumerate().filter(|(_, c)| of(&c.action)).nth(n).map(|(i, _)| (rank, i))
        };
        match program.ranks[rank].commands[index].action {
            Action::Compute => Some(vec![(rank, index)]),
            action @ Action::Collective { group, .. } => {
                program.groups[group].ranks.iter().map(|&m| nth(m, 0, &|a| *a == action)).collect()
            }
            Action::Send { to } => {
                let n = count(rank, index, &|a| *a == Action::Send { to });
                Some(vec![(rank, index), nth(to, n, &|a| *a == Action::Receive { from: rank })?])
            }
            Action::Receive { from } => {
                let n = count(rank, index, &|a| *a == Action::Receive { from });
                Some(vec![(rank, index), nth(from, n, &|a| *a == Action::Send { to: rank })?])
            }
        }
    };
    loop {
        let before = done.len();
        for rank in program.ranks.ids() {
            for index in 0..program.ranks[rank].commands.len() {
                let Some(members) = partners(rank, index) else { continue };
                let starts: Option<Vec<u64>> = members.iter().map(|&(r, i)| ready(&done, r, i)).collect();
                let (Some(starts), false) = (starts, done.contains_key(&(rank.0, index as u32))) else { continue };
                let last = *starts.iter().max().unwrap();
                let longest = members.iter().map(|&(r, i)| priced[r][i].message_bytes).max().unwrap();
                let compute = program.ranks[rank].commands[index].action == Action::Compute;
                let floor = if compute { CAPTURED.graph_node.as_ps() } else { 0 };
                for (&(r, i), start) in members.iter().zip(starts) {
                    done.insert((r.0, i as u32), (start, last + longest.max(floor)));
                }
            }
        }
        if done.len() == before {
            return (done.len() == total).then_some(done);
        }
    }
}

/// Something that happens in a random program, in an order that every rank follows.
#[derive(Clone, Debug)]
struct Item {
    /// 0 and 1: an all-reduce of that group; 2: a message; otherwise a kernel.
    what: u8,
    rank: u32,
    peer: u32,
    streams: [u32; 3],
    ps: u64,
    wait: bool,
    record: bool,
}

const GROUPS: [&[u32]; 2] = [&[0, 1, 2], &[2, 0]];

/// Three ranks that follow the items; `swap` exchanges two lines of a rank, which may make them hang.
fn lines(items: &[Item], swap: Option<(u32, usize, usize)>) -> Vec<Vec<Line>> {
    let mut ranks: Vec<Vec<Line>> = vec![vec![]; 3];
    let mut sequences = [0u32; 2];
    let mut last_event = [None; 3];
    for (number, item) in items.iter().enumerate() {
        let mut push = |rank: u32, stream: u32, action: Action| {
            let r = rank as usize;
            let waits = last_event[r].filter(|_| item.wait).into_iter().collect();
            let records = item.record.then_some(number as u32);
            last_event[r] = records.or(last_event[r]);
            ranks[r].push(Line { waits, records, action, ..compute(stream, item.ps) });
        };
        match item.what {
            group @ 0..2 => {
                let sequence = sequences[usize::from(group)];
                sequences[usize::from(group)] += 1;
                for &rank in GROUPS[usize::from(group)] {
                    push(rank, item.streams[rank as usize], Action::Collective { group: GroupId(u32::from(group)), sequence });
                }
            }
            // Messages between two ranks match in the order of arrival, which is the program's on one stream.
            2 => {
                let to = (item.rank + item.peer) % 3;
                push(item.rank, 0, Action::Send { to: RankId(to) });
                push(to, 0, Action::Receive { from: RankId(item.rank) });
            }
            _ => push(item.rank, item.streams[0], Action::Compute),
        }
    }
    if let Some((rank, i, j)) = swap {
        let list = &mut ranks[rank as usize];
        if i < list.len() && j < list.len() {
            list.swap(i, j);
        }
    }
    ranks
}

prop_compose! {
    fn item()(what in 0u8..7, rank in 0u32..3, peer in 1u32..3, streams in prop::array::uniform3(0u32..3), ps in 0u64..40, wait: bool, record: bool) -> Item {
        Item { what, rank, peer, streams, ps, wait, record }
    }
}

fn any_lines() -> impl Strategy<Value = Vec<Vec<Line>>> {
    let swap = prop::option::weighted(0.6, (0u32..3, 0usize..10, 0usize..10));
    (prop::collection::vec(item(), 0..14), swap).prop_map(|(items, swap)| lines(&items, swap))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    /// Any program either runs as the definition says, or is reported as stuck exactly where the definition leaves commands over.
    #[test]
    fn the_engine_agrees_with_the_definition(lines in any_lines()) {
        let (program, priced) = program(&lines, &GROUPS);
        let expected = naive(&program, &priced);
        match execute(&program, &priced, &[0, 1, 2], CAPTURED, 1, &mut Fixed) {
            Ok(trace) => prop_assert_eq!(Some(times(&trace)), expected),
            Err(SimError::Deadlock { .. }) => prop_assert_eq!(None, expected),
            Err(other) => prop_assert!(false, "{}", other),
        }
    }

    /// Eager or captured, several passes: it ends or says why, and time never runs backwards.
    #[test]
    fn any_program_ends_or_says_why(lines in any_lines(), graphs: bool, steps in 0u32..4) {
        let host = HostCosts { graphs, ..CAPTURED };
        if let Ok(trace) = run(&lines, &GROUPS, host, steps) {
            for (id, span) in trace.spans.iter() {
                prop_assert!(span.start <= span.end && span.end.since(Time::ZERO) <= trace.total);
                if let Cause::Span(cause) = span.cause {
                    // A host wait ends with its cause, everything else begins after it.
                    let limit = if span.kind == SpanKind::HostWait { span.end } else { span.start };
                    prop_assert!(cause < id && trace.spans[cause].end <= limit);
                }
            }
        }
    }
}
