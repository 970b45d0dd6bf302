//! Times of single ops in a captured graph, over enough copies of their weights that none stays in the cache.

use super::build::{Build, Numbers, step};
use super::cases::router;
use moetwin_cuda::exec::trial::Trial;
use moetwin_kernels::reference::{Array, CacheSlot, Turn};
use moetwin_models::graph::NewTensor;
use moetwin_models::op::LinearRole;
use moetwin_models::spec::Activation;
use moetwin_models::{
    DType, Deployment, Dim, Graph, ModelSpec, NodeId, Op, Sequence, TensorId, TensorKind, WeightFormat, WeightRef, WeightRole,
};
use moetwin_runtime::weights::SyntheticWeights;
use std::error::Error;
use std::io::{Write, stdout};

/// Bytes of weights that copies of an op should have together: several times the 50 MB cache of an H100, 60 MB of an H200.
const COLD_BYTES: u64 = 400 << 20;
const MOST_COPIES: u64 = 24;
const REPLAYS: usize = 30;

struct Shape {
    name: &'static str,
    rows: u64,
    /// Bytes that one run must read.
    bytes: u64,
    /// Products and sums of a run, where they may take longer than the bytes.
    flops: u64,
    graph: Graph,
}

fn projection(name: &'static str, rows: u64, n: u64, k: u64, role: (LinearRole, WeightRole)) -> Shape {
    let mut graph = Graph::new(step(&vec![(0, 1); rows as usize]), Deployment::single());
    let x = graph.add_source("x", TensorKind::Activation, vec![Dim::Tokens, Dim::Fixed(k)], DType::Bf16);
    let weight = WeightRef { role: role.1, layer: Some(0), format: WeightFormat::Bf16 };
    let w = graph.add_source("w", TensorKind::Weight(weight), vec![Dim::Fixed(n), Dim::Fixed(k)], DType::Bf16);
    let y = NewTensor::activation("y", vec![Dim::Tokens, Dim::Fixed(n)], DType::Bf16);
    graph.add_node(Op::Linear { role: role.0 }, None, 0, vec![x, w], vec![y]);
    Shape { name, rows, bytes: 2 * n * k, flops: 2 * rows * n * k, graph }
}

fn experts(name: &'static str, rows: u64, count: u64, k: u64, hidden: u64, inter: u64, format: WeightFormat) -> Shape {
    let mut graph = Graph::new(step(&vec![(0, 1); rows as usize]), Deployment::single());
    let tokens = |graph: &mut Graph, name: &str, width| {
        graph.add_source(name, TensorKind::Activation, vec![Dim::Tokens, Dim::Fixed(width)], DType::Bf16)
    };
    let x = tokens(&mut graph, "x", hidden);
    let z = tokens(&mut graph, "z", 8);
    let logits = NewTensor::activation("logits", vec![Dim::Tokens, Dim::Fixed(count)], DType::F32);
    let logits = graph.add_node(Op::Linear { role: LinearRole::Router }, None, 0, vec![z], vec![logits])[0];
    let chosen = vec![Dim::Tokens, Dim::Fixed(k)];
    let results = vec![NewTensor::activation("ids", chosen.clone(), DType::I32), NewTensor::activation("weights", chosen, DType::F32)];
    let routed = graph.add_node(Op::Route { router: router(), topk: k as u32 }, None, 0, vec![logits], results);
    let mut weight =
        |role, name: &str, dims| graph.add_source(name, TensorKind::Weight(WeightRef { role, layer: Some(0), format }), dims, DType::Bf16);
    let e = Dim::Experts(count);
    let up = weight(WeightRole::ExpertsGateUp, "up", vec![e.clone(), Dim::gate_up(inter), Dim::Fixed(hidden)]);
    let down = weight(WeightRole::ExpertsDown, "down", vec![e, Dim::Fixed(hidden), Dim::packed(inter, 1)]);
    let y = NewTensor::activation("y", vec![Dim::Tokens, Dim::Fixed(hidden)], DType::Bf16);
    graph.add_node(Op::Experts { activation: Activation::Silu }, None, 0, vec![x, routed[0], routed[1], up, down], vec![y]);
    Shape { name, rows, bytes: format.matrix_bytes(3 * inter, hidden), flops: 0, graph }
}

fn attention(name: &'static str, rows: u64, past: u32, heads: u64) -> Shape {
    let mut graph = Graph::new(step(&vec![(past, 1); rows as usize]), Deployment::single());
    let q = graph.add_source("q", TensorKind::Activation, vec![Dim::Tokens, Dim::Fixed(heads * 576)], DType::Bf16);
    let cache = graph.add_source("cache", TensorKind::Cache { layer: 0 }, vec![Dim::KvRows, Dim::Fixed(576)], DType::Bf16);
    let y = NewTensor::activation("y", vec![Dim::Tokens, Dim::Fixed(heads * 512)], DType::Bf16);
    graph.add_node(Op::MlaDecode { kv_lora: 512, scale: 0.14, sparse_topk: None, split_context: false }, None, 0, vec![q, cache], vec![y]);
    Shape { name, rows, bytes: rows * (u64::from(past) + 1) * 1152, flops: 0, graph }
}

fn shapes() -> Vec<Shape> {
    let int4 = WeightFormat::Int4Group { group: 32 };
    let o = (LinearRole::O, WeightRole::O);
    let mut list = Vec::new();
    for rows in [1, 16, 64] {
        list.push(projection("qkv_a 2112 x 7168", rows, 2112, 7168, o));
        list.push(projection("q_b 12288 x 1536", rows, 12_288, 1536, o));
        list.push(projection("o 7168 x 8192", rows, 7168, 8192, o));
        list.push(projection("lm_head 163840 x 7168", rows, 163_840, 7168, o));
        list.push(projection("qkv 5120 x 2048", rows, 5120, 2048, o));
        list.push(projection("router 384 x 7168", rows, 384, 7168, (LinearRole::Router, WeightRole::Router)));
        list.push(experts("experts int4, Kimi", rows, 384, 8, 7168, 2048, int4));
        list.push(experts("experts bf16, Qwen3", rows, 128, 8, 2048, 768, WeightFormat::Bf16));
        list.push(attention("mla decode, 64 heads, 128", rows, 128, 64));
        list.push(attention("mla decode, 64 heads, 4096", rows, 4095, 64));
        list.push(attention("mla decode, 32 heads, 4096", rows, 4095, 32));
        list.push(attention("mla decode, 8 heads, 4096", rows, 4095, 8));
    }
    for rows in [256, 2048] {
        list.push(projection("prefill o 7168 x 8192", rows, 7168, 8192, o));
        list.push(projection("prefill qkv 5120 x 2048", rows, 5120, 2048, o));
    }
    list
}

/// Measures every shape and prints a table.
pub(crate) fn run(trial: &mut Trial, spec: &ModelSpec, only: Option<&str>, sweep: bool) -> Result<(), Box<dyn Error>> {
    let mut n = Numbers::new(7);
    for shape in shapes().iter().filter(|s| only.is_none_or(|o| s.name.contains(o))) {
        let node = NodeId(shape.graph.nodes.len() as u32 - 1);
        let experts = matches!(shape.graph.nodes[node].op, Op::Experts { .. });
        let copies = if experts { 2 } else { COLD_BYTES.div_ceil(shape.bytes).clamp(1, MOST_COPIES) };
        let slots: Vec<CacheSlot> = (0..shape.rows)
            .map(|i| {
                let sequence: Sequence = shape.graph.step.sequences[i as usize];
                CacheSlot { sequence, cache_start: i as usize * (sequence.past + 1) as usize, turn: Turn::WHOLE }
            })
            .collect();
        let mut distinct = 0;
        let mut placed = Vec::new();
        for copy in 0..copies {
            let source = SyntheticWeights::new(spec, copy);
            let values = |t: TensorId| {
                let sizes: Vec<usize> =
                    shape.graph.local_sizes(t, moetwin_models::RankId(0)).unwrap_or_default().iter().map(|s| *s as usize).collect();
                let len: usize = sizes.iter().product();
                if shape.graph.tensors[t].dtype != DType::I32 {
                    return Array::real(&sizes, (0..len).map(|_| n.real() as f32).collect());
                }
                let count = shape.graph.local_sizes(shape.graph.nodes[node].inputs[3], moetwin_models::RankId(0)).map_or(1, |s| s[0]);
                let mut ids: Vec<i32> = Vec::with_capacity(len);
                for row in 0..sizes[0] {
                    while ids.len() < (row + 1) * sizes[1] {
                        let id = n.below(count) as i32;
                        if !ids[row * sizes[1]..].contains(&id) {
                            ids.push(id);
                        }
                    }
                }
                let set: std::collections::BTreeSet<i32> = ids.iter().copied().collect();
                distinct += set.len() as u64;
                Array::int(&sizes, ids)
            };
            placed.push(trial.place_from(&shape.graph, node, &source, values, &slots)?);
        }
        let bytes = if experts { shape.bytes as f64 * distinct as f64 / copies as f64 } else { shape.bytes as f64 };
        let extra = if experts { format!(", {} distinct experts", distinct / copies) } else { String::new() };
        for parts in [0, 1, 2, 4, 8] {
            if parts > 0 {
                let changed = placed.iter_mut().filter_map(|p| (sweep && p.set_parts(parts)).then_some(())).count();
                if changed == 0 {
                    continue;
                }
            }
            let list: Vec<_> = placed.iter().collect();
            let graph = trial.capture(&list)?;
            let mut times = Vec::new();
            for _ in 0..REPLAYS {
                times.push(trial.time(graph)?.as_secs_f64() / copies as f64);
            }
            times.sort_by(f64::total_cmp);
            let median = times[times.len() / 2];
            let what = if parts == 0 { format!("[{}]{extra}", placed[0].kernels().join(", ")) } else { format!("parts {parts}") };
            let rate = if shape.flops > 0 { format!("  {:>5.1} TFLOP/s", shape.flops as f64 / median / 1e12) } else { String::new() };
            writeln!(
                stdout(),
                "{:<28} {:>4} rows  {:>9.1} us  {:>6.2} TB/s{rate}  {what}",
                shape.name,
                shape.rows,
                median * 1e6,
                bytes / median / 1e12
            )?;
        }
        drop(placed);
        trial.free_all()?;
    }
    Ok(())
}

/// Weights drawn on the device are those that the host draws.
pub(crate) fn synthetic(trial: &mut Trial, spec: &ModelSpec, seed: u64) -> Result<(), Box<dyn Error>> {
    use moetwin_kernels::dequant::encode_e4m3;
    use moetwin_kernels::launch::storage::{Packed, Storage, extent_of, storage_of, to_tiles};
    use moetwin_runtime::weights::{Grid, WeightSource};
    let rank = moetwin_models::RankId(0);
    let source = SyntheticWeights::new(spec, seed);
    let int4 = WeightFormat::Int4Group { group: 32 };
    let fp8 = WeightFormat::Fp8Block { rows: 128, cols: 128 };
    let e = Dim::Experts(3);
    for (role, format, dims) in [
        (WeightRole::O, WeightFormat::Bf16, vec![Dim::Fixed(37), Dim::Fixed(72)]),
        (WeightRole::O, WeightFormat::Bf16, vec![Dim::Fixed(19), Dim::Fixed(45)]),
        (WeightRole::Router, WeightFormat::F32, vec![Dim::Fixed(24), Dim::Fixed(64)]),
        (WeightRole::InputNorm, WeightFormat::Bf16, vec![Dim::Fixed(100)]),
        (WeightRole::ExpertsGateUp, WeightFormat::Mxfp4, vec![e.clone(), Dim::gate_up(24), Dim::Fixed(64)]),
        (WeightRole::ExpertsGateUp, int4, vec![e.clone(), Dim::gate_up(20), Dim::Fixed(160)]),
        (WeightRole::ExpertsDown, int4, vec![e.clone(), Dim::Fixed(40), Dim::packed(64, 1)]),
        (WeightRole::ExpertsGateUp, fp8, vec![e.clone(), Dim::gate_up(128), Dim::Fixed(192)]),
        (WeightRole::O, fp8, vec![Dim::Fixed(150), Dim::Fixed(128)]),
    ] {
        let mut graph = Build::rows(1).graph;
        let weight = WeightRef { role, layer: Some(3), format };
        let tensor = graph.add_source("w", TensorKind::Weight(weight), dims, DType::Bf16);
        let got = trial.weight_bytes(&source, &graph, tensor)?;
        let values = source.load(&graph, tensor, rank)?;
        let reals = values.as_real().ok_or("a weight of integers")?;
        let storage = storage_of(&graph, tensor, rank)?;
        let extent = extent_of(&graph, tensor, rank)?;
        let expected: Vec<u8> = match (storage, source.recipe(&graph, tensor, rank)?.map(|r| r.grid)) {
            (Storage::Rows(element), _) if element.bytes() == 4 => reals.iter().flat_map(|v| v.to_le_bytes()).collect(),
            (Storage::Rows(_), _) => reals.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect(),
            (packed, Some(Grid::Int4 { scale } | Grid::Fp8 { scale })) => {
                let code = |v: &f32| match packed {
                    Storage::Int4 { .. } => (v / scale + 8.0) as u8,
                    _ => encode_e4m3(v / scale),
                };
                let groups = extent.cols.div_ceil(packed.scale_cols());
                let scales = vec![scale; (extent.experts * extent.rows * groups) as usize];
                to_tiles(packed, &Packed { extent, codes: reals.iter().map(code).collect(), scales })
            }
            other => return Err(format!("{other:?} is not expected").into()),
        };
        // A tile's padding holds zero codes, which the host's copy leaves as zero bytes.
        match got.iter().zip(&expected).position(|(a, b)| a != b) {
            None if got.len() == expected.len() => {}
            at => {
                return Err(format!(
                    "{role:?} in {}: {} bytes of {}, first difference at {at:?}",
                    format.name(),
                    got.len(),
                    expected.len()
                )
                .into());
            }
        }
    }
    Ok(())
}
