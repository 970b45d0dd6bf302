use crate::harness::*;
use moetwin_kernels::reference::collective::{
    CollectiveError, DispatchSource, GatherPart, all_gather, all_reduce, combine, dispatch, held_ranges, reduce_scatter, slice,
};
use moetwin_kernels::reference::{Array, LocalContext};
use moetwin_models::spec::Activation;
use moetwin_models::{
    Axis, DType, Deployment, Dim, Graph, Layout, LogitsRows, Op, Phase, Placement, RankId, Segment, Sequence, Step, TensorId, TensorKind,
};
use proptest::prelude::*;

fn blank(sizes: &[usize]) -> Array<f64> {
    Array::poisoned(sizes, DType::F32)
}

#[test]
fn sums_are_taken_in_rank_order() {
    // (1e16 + 1) + -1e16 is 0 in f64, any other order gives 1.
    let parts = [1e16, 1.0, -1e16].map(|v| real(&[1], &[v]));
    let parts: Vec<&Array<f64>> = parts.iter().collect();
    let mut out = blank(&[1]);
    all_reduce(&parts, &mut out).unwrap();
    assert_eq!(out, real(&[1], &[0.0]));
    all_reduce(&[parts[0], parts[2], parts[1]], &mut out).unwrap();
    assert_eq!(out, real(&[1], &[1.0]));
}

#[test]
fn a_gather_puts_packed_segments_side_by_side() {
    // gate | up over two ranks: rank 0 holds gate 0 and up 0.
    let parts = [real(&[2, 2], &[1., 3., 5., 7.]), real(&[2, 2], &[2., 4., 6., 8.])];
    let parts = [GatherPart { array: &parts[0], ranges: vec![0..1, 2..3] }, GatherPart { array: &parts[1], ranges: vec![1..2, 3..4] }];
    let mut out = blank(&[2, 4]);
    all_gather(&parts, 1, &mut out).unwrap();
    assert_eq!(out, real(&[2, 4], &[1., 2., 3., 4., 5., 6., 7., 8.]));
}

#[test]
fn a_gather_with_a_hole_or_a_part_of_the_wrong_size_is_refused() {
    let part = real(&[1, 2], &[1., 2.]);
    let mut out = blank(&[1, 3]);
    let gather = |range: std::ops::Range<usize>, out: &mut Array<f64>| {
        all_gather(&[GatherPart { array: &part, ranges: std::iter::once(range).collect() }], 1, out)
    };
    let hole = gather(1..3, &mut out);
    assert_eq!(hole, Err(CollectiveError::Hole { dim: 1, index: 0 }));
    let long = gather(0..3, &mut out);
    assert_eq!(long, Err(CollectiveError::Length { got: 2, expected: 3 }));
    let outside = gather(2..4, &mut out);
    assert_eq!(outside, Err(CollectiveError::OutOfRange { start: 2, end: 4, size: 3 }));
    assert_eq!(all_reduce::<f64>(&[], &mut out), Err(CollectiveError::NoParts));
    assert_eq!(all_reduce(&[&ids(&[1], &[1])], &mut out), Err(CollectiveError::Kind));
    assert!(matches!(all_reduce(&[&part, &out.clone()], &mut out), Err(CollectiveError::Shapes { .. })));
    assert!(matches!(slice(&part, 2, &[], &mut out), Err(CollectiveError::NoSuchDim { dim: 2, .. })));
}

#[test]
fn dispatch_sends_a_row_once_to_each_rank_that_holds_one_of_its_experts() {
    // Two ranks of two experts; rank 0 has two tokens, rank 1 has one. Slots: two for each source.
    let x = [real(&[2, 1], &[10., 11.]), real(&[1, 1], &[20.])];
    let choice = [ids(&[2, 2], &[0, 1, 1, 2]), ids(&[1, 2], &[3, 2])];
    let weights = [real(&[2, 2], &[0.1, 0.2, 0.3, 0.4]), real(&[1, 2], &[0.5, 0.6])];
    let sources: Vec<_> = (0..2).map(|r| DispatchSource { x: &x[r], ids: &choice[r], weights: &weights[r] }).collect();
    let received = |experts| {
        let mut out = [blank(&[4, 1]), Array::poisoned(&[4, 2], DType::I32), blank(&[4, 2])];
        dispatch(&sources, experts, &mut out).unwrap();
        out
    };
    let first = [
        real(&[4, 1], &[10., 11., 0., 0.]),
        ids(&[4, 2], &[0, 1, 1, 2, -1, -1, -1, -1]),
        real(&[4, 2], &[0.1, 0.2, 0.3, 0.4, 0., 0., 0., 0.]),
    ];
    assert_eq!(received(0..2), first);
    let second = [
        real(&[4, 1], &[0., 11., 20., 0.]),
        ids(&[4, 2], &[-1, -1, 1, 2, 3, 2, -1, -1]),
        real(&[4, 2], &[0., 0., 0.3, 0.4, 0.5, 0.6, 0., 0.]),
    ];
    assert_eq!(received(2..4), second);

    let (a, b) = (real(&[4, 1], &[1., 2., 0., 0.]), real(&[4, 1], &[0., 30., 40., 0.]));
    let back = |receiver, rows| {
        let mut out = blank(&[rows, 1]);
        combine(&[&a, &b], receiver, &mut out).map(|()| out)
    };
    assert_eq!(back(0, 2), Ok(real(&[2, 1], &[1., 32.])));
    assert_eq!(back(1, 1), Ok(real(&[1, 1], &[40.])));
    assert!(matches!(back(1, 3), Err(CollectiveError::Shapes { .. })));
}

/// A graph with one whole tensor and one cut along `dim`.
fn graph(deployment: Deployment, step: Step, shape: Vec<Dim>, cut: Layout) -> (Graph, TensorId, TensorId) {
    let mut g = Graph::new(step, deployment);
    let whole = g.add_source("whole", TensorKind::Activation, shape.clone(), DType::F32);
    let part = g.add_source("part", TensorKind::Activation, shape, DType::F32);
    g.tensors[part].layout = cut;
    (g, whole, part)
}

fn sizes(g: &Graph, t: TensorId, rank: RankId) -> Vec<usize> {
    g.local_sizes(t, rank).unwrap().into_iter().map(|s| s as usize).collect()
}

#[test]
fn shared_kv_heads_are_gathered_once() {
    let deployment = Deployment { tp: 4, ..Deployment::default() };
    let qkv = Dim::Packed(vec![Segment::new(4, 1), Segment::replicable(2, 1), Segment::replicable(2, 1)]);
    let (g, whole, part) = graph(deployment, Step::uniform(Phase::Decode, 1, 1), vec![qkv], Layout::shard(Axis::Tp, 0));
    let ranges = |r| held_ranges(&g, whole, part, 0, RankId(r)).unwrap();
    assert_eq!(ranges(1), [1..2, 4..5, 6..7]);
    assert_eq!(ranges(2), [2..3, 5..6, 7..8]);
    // Ranks 0 and 1 share the first kv head; rank 0's value is kept.
    let parts = [[0., 4., 6.], [1., 40., 60.], [2., 5., 7.], [3., 50., 70.]].map(|v| real(&[3], &v));
    let parts: Vec<_> = parts.iter().enumerate().map(|(r, array)| GatherPart { array, ranges: ranges(r as u32) }).collect();
    let mut out = blank(&[8]);
    all_gather(&parts, 0, &mut out).unwrap();
    assert_eq!(out, real(&[8], &[0., 1., 2., 3., 4., 5., 6., 7.]));
}

fn dims() -> impl Strategy<Value = Dim> {
    prop_oneof![
        Just(Dim::Tokens),
        Just(Dim::LogitsRows),
        Just(Dim::KvRows),
        (1u64..40).prop_map(Dim::Vocab),
        (1u64..4).prop_map(|n| Dim::Fixed(n * 24)),
        (1u64..3, 1u64..3).prop_map(|(u, w)| Dim::packed(u * 24, w)),
        (1u64..3).prop_map(|n| Dim::gate_up(n * 24)),
        Just(Dim::Packed(vec![Segment::new(24, 2), Segment::replicable(1, 2), Segment::replicable(2, 3)])),
    ]
}

proptest! {
    #[test]
    fn what_is_cut_comes_back_whole(
        (seed, dim, before, inner) in (any::<u64>(), dims(), 0usize..2, 1usize..3),
        (axis, parts, other) in (prop::sample::select(Axis::ALL.to_vec()), prop::sample::select(vec![1u32, 2, 4]), prop::sample::select(vec![1u32, 2])),
        list in prop::collection::vec((0u32..4, 0u32..4), 0..6),
    ) {
        let (mut d, tp) = (Deployment { tp: parts * other, ..Deployment::default() }, parts * other);
        match axis {
            Axis::Tp => {}
            Axis::AttnTp => d.dp_attention = other,
            Axis::AttnDp => d.dp_attention = parts,
            Axis::Ep => d.ep = parts,
            Axis::MoeTp => d.ep = other,
            Axis::HeadTp => d.dcp = other,
            Axis::Dcp => d.dcp = parts,
        }
        // Rows that are dealt out one by one are never put back together.
        prop_assume!(axis != Axis::Dcp || !matches!(dim, Dim::Tokens | Dim::LogitsRows | Dim::KvRows));
        let step = Step { phase: Phase::Prefill, sequences: list.into_iter().map(|(past, new)| Sequence { past, new }).collect(), logits: LogitsRows::All };
        let (index, mut shape) = (before as u8, vec![Dim::Fixed(3); before]);
        shape.extend([dim, Dim::Fixed(inner as u64)]);
        let cut = if d.axis_size(axis) > 1 { Layout::replicated().with(axis, Placement::Shard(index)) } else { Layout::replicated() };
        let (mut g, whole, part) = graph(d.clone(), step, shape, cut);
        // Within a data-parallel group of attention ranks, the whole is the group's rows.
        if axis == Axis::AttnTp && d.dp_attention > 1 && matches!(g.tensors[whole].shape[before], Dim::Tokens | Dim::LogitsRows | Dim::KvRows) {
            for t in [whole, part] {
                g.tensors[t].layout = g.tensors[t].layout.clone().with(Axis::AttnDp, Placement::Shard(index));
            }
        }
        let mut n = Numbers::new(seed);
        for rank in (0..tp).map(RankId) {
            let group = d.group(axis, rank);
            let value = n.array(&sizes(&g, whole, rank));
            let pieces: Vec<(Array<f64>, Vec<_>)> = group.iter().map(|&r| {
                let ranges = held_ranges(&g, whole, part, index, r).unwrap();
                let mut piece = blank(&sizes(&g, part, r));
                slice(&value, index, &ranges, &mut piece).unwrap();
                (piece, ranges)
            }).collect();
            let parts: Vec<_> = pieces.iter().map(|(array, ranges)| GatherPart { array, ranges: ranges.clone() }).collect();
            let mut back = blank(&value.sizes);
            all_gather(&parts, index, &mut back).unwrap();
            prop_assert_eq!(&back, &value);

            // Reduce-scatter is the slice of the all-reduce.
            let summands: Vec<Array<f64>> = group.iter().map(|_| n.array(&value.sizes)).collect();
            let summands: Vec<&Array<f64>> = summands.iter().collect();
            let mut sum = blank(&value.sizes);
            all_reduce(&summands, &mut sum).unwrap();
            let ranges = held_ranges(&g, whole, part, index, rank).unwrap();
            let (mut sliced, mut scattered) = (blank(&sizes(&g, part, rank)), blank(&sizes(&g, part, rank)));
            slice(&sum, index, &ranges, &mut sliced).unwrap();
            reduce_scatter(&summands, index, &ranges, &mut scattered).unwrap();
            prop_assert_eq!(sliced, scattered);
        }
    }

    #[test]
    fn dispatched_experts_equal_local_ones(
        (seed, ranks, per_rank, topk) in (any::<u64>(), 1usize..5, 1usize..4, 1usize..4),
        rows in prop::collection::vec(0usize..5, 4),
        extra_slots in 0usize..3,
    ) {
        let (hidden, inter, experts) = (3, 2, ranks * per_rank);
        let rows = &rows[..ranks];
        let mut n = Numbers::new(seed);
        let (gate_up, down) = (n.array(&[experts, 2 * inter, hidden]), n.array(&[experts, hidden, inter]));
        let tokens: Vec<[Array<f64>; 3]> = rows.iter().map(|&t| {
            let choice: Vec<i32> = (0..t * topk).map(|_| n.below(experts + 1) as i32 - 1).collect();
            [n.array(&[t, hidden]), ids(&[t, topk], &choice), n.array(&[t, topk])]
        }).collect();
        let slots = rows.iter().max().unwrap() + extra_slots;
        let sources: Vec<_> = tokens.iter().map(|[x, ids, weights]| DispatchSource { x, ids, weights }).collect();
        let op = Op::Experts { activation: Activation::Silu };
        let results: Vec<Array<f64>> = (0..ranks).map(|r| {
            let mut out = [blank(&[ranks * slots, hidden]), Array::poisoned(&[ranks * slots, topk], DType::I32), blank(&[ranks * slots, topk])];
            dispatch(&sources, (r * per_rank) as i32..((r + 1) * per_rank) as i32, &mut out).unwrap();
            let [x, ids, weights] = out;
            let local = |a: &Array<f64>| {
                let size = a.as_real().unwrap().len() / experts * per_rank;
                real(&[per_rank, a.sizes[1], a.sizes[2]], &a.as_real().unwrap()[r * size..(r + 1) * size])
            };
            let context = LocalContext { expert_start: r * per_rank, ..LocalContext::default() };
            compute(&op, &context, &[x, ids, weights, local(&gate_up), local(&down)], &[Result64::Real(vec![ranks * slots, hidden])]).remove(0)
        }).collect();
        let results: Vec<&Array<f64>> = results.iter().collect();
        for (r, [x, choice, weights]) in tokens.iter().enumerate() {
            let inputs = [x.clone(), choice.clone(), weights.clone(), gate_up.clone(), down.clone()];
            let expected = compute(&op, &LocalContext::default(), &inputs, &[Result64::Real(vec![rows[r], hidden])]).remove(0);
            let mut combined = blank(&[rows[r], hidden]);
            combine(&results, r, &mut combined).unwrap();
            assert_close(&combined, &expected, 1e-12);
        }
    }
}
