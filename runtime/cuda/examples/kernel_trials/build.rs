//! Random operands of one op: a graph that holds it, what the GPU gets, and what the reference computes from the same numbers.

use half::bf16;
use moetwin_cuda::exec::trial::{Operand, Trial};
use moetwin_kernels::dequant::{decode_e4m3, encode_e4m3};
use moetwin_kernels::launch::storage::{Extent, Packed, Storage, storage_of};
use moetwin_kernels::launch::{Element, element_of};
use moetwin_kernels::reference::{Array, CacheSlot, Data, LocalContext, Turn, in_place, run};
use moetwin_kernels::splitmix::SplitMix64;
use moetwin_models::graph::NewTensor;
use moetwin_models::op::LinearRole;
use moetwin_models::{DType, Deployment, Dim, Graph, LogitsRows, NodeId, Op, Phase, RankId, Sequence, Step, TensorId, TensorKind};
use moetwin_models::{WeightFormat, WeightRef, WeightRole};
use std::error::Error;

/// Deterministic numbers.
pub(crate) struct Numbers(SplitMix64);

impl Numbers {
    pub(crate) fn new(seed: u64) -> Self {
        Self(SplitMix64(seed))
    }
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0.below(n)
    }
    pub(crate) fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as u64) as usize]
    }
    /// Uniform in -1..1.
    pub(crate) fn real(&mut self) -> f64 {
        self.0.real()
    }
    pub(crate) fn reals(&mut self, n: usize, scale: f64) -> Vec<f64> {
        (0..n).map(|_| self.real() * scale).collect()
    }
}

/// One op with its operands.
pub(crate) struct Case {
    pub(crate) graph: Graph,
    pub(crate) node: NodeId,
    pub(crate) slots: Vec<CacheSlot>,
    operands: Vec<Operand>,
    values: Vec<Array<f64>>,
    sizes: Vec<Vec<usize>>,
}

/// A case under construction.
pub(crate) struct Build {
    pub(crate) graph: Graph,
    slots: Vec<CacheSlot>,
    inputs: Vec<TensorId>,
    given: Vec<Given>,
    /// Operands of a node that the op carries, behind its own.
    carried: Vec<(TensorId, Array<f64>)>,
    names: u32,
}

enum Given {
    Values(Array<f64>),
    Packed(Packed, Array<f64>),
}

pub(crate) fn step(sequences: &[(u32, u32)]) -> Step {
    let sequences = sequences.iter().map(|&(past, new)| Sequence { past, new }).collect();
    Step { phase: Phase::Decode, sequences, logits: LogitsRows::Last }
}

impl Build {
    /// Sequences of (past, new) tokens, with a gap between their cache rows.
    pub(crate) fn new(sequences: &[(u32, u32)]) -> Self {
        let mut next = 1;
        let slots = sequences.iter().map(|&(past, new)| {
            let slot = CacheSlot { sequence: Sequence { past, new }, cache_start: next, turn: Turn::WHOLE };
            next += (past + new) as usize + 2;
            slot
        });
        let slots = slots.collect();
        Self {
            graph: Graph::new(step(sequences), Deployment::single()),
            slots,
            inputs: Vec::new(),
            given: Vec::new(),
            carried: Vec::new(),
            names: 0,
        }
    }
    /// One sequence per token row, as in decode.
    pub(crate) fn rows(rows: u64) -> Self {
        Self::new(&vec![(0, 1); rows as usize])
    }
    pub(crate) fn tokens(&self) -> usize {
        self.graph.step.tokens() as usize
    }
    /// Cache rows that hold all sequences, and some more.
    pub(crate) fn cache_rows(&self) -> usize {
        self.slots.last().map_or(1, |s| s.cache_start + (s.sequence.past + s.sequence.new) as usize + 3)
    }
    fn name(&mut self) -> String {
        self.names += 1;
        format!("x{}", self.names)
    }
    /// An operand that holds bf16 values.
    pub(crate) fn real(&mut self, dims: Vec<Dim>, array: Array<f64>) -> TensorId {
        self.source(TensorKind::Activation, dims, DType::Bf16, array)
    }
    pub(crate) fn source(&mut self, kind: TensorKind, dims: Vec<Dim>, dtype: DType, array: Array<f64>) -> TensorId {
        let name = self.name();
        let tensor = self.graph.add_source(name, kind, dims, dtype);
        self.inputs.push(tensor);
        self.given.push(Given::Values(array));
        tensor
    }
    pub(crate) fn weight(&mut self, role: WeightRole, format: WeightFormat, dims: Vec<Dim>, array: Array<f64>) -> TensorId {
        self.source(TensorKind::Weight(WeightRef { role, layer: Some(0), format }), dims, DType::Bf16, array)
    }
    /// A weight in `format`, with random codes and scales where that is packed.
    pub(crate) fn drawn(&mut self, n: &mut Numbers, role: WeightRole, format: WeightFormat, dims: Vec<Dim>, scale: f64) {
        let name = self.name();
        let tensor = self.graph.add_source(name, TensorKind::Weight(WeightRef { role, layer: Some(0), format }), dims, DType::Bf16);
        let sizes: Vec<usize> = self.graph.local_sizes(tensor, RankId(0)).expect("whole").iter().map(|s| *s as usize).collect();
        self.inputs.push(tensor);
        let storage = storage_of(&self.graph, tensor, RankId(0)).expect("whole");
        let given = if matches!(storage, Storage::Rows(_)) {
            Given::Values(Array::real(&sizes, n.reals(sizes.iter().product(), scale)))
        } else {
            let packed = random_packed(n, storage, &sizes, scale);
            let values = unpack(storage, &packed);
            Given::Packed(packed, Array::real(&sizes, values))
        };
        self.given.push(given);
    }
    /// Ids or weights as a router gives them: results of nodes that are never run.
    pub(crate) fn routed(&mut self, k: u64, experts: u64, ids: Vec<i32>, weights: Vec<f64>) {
        let logits = self.logits(experts);
        let (ids_name, weights_name) = (self.name(), self.name());
        let dims = vec![Dim::Tokens, Dim::Fixed(k)];
        let results =
            vec![NewTensor::activation(ids_name, dims.clone(), DType::I32), NewTensor::activation(weights_name, dims, DType::F32)];
        let op = Op::Route { router: super::cases::router(), topk: k as u32 };
        let out = self.graph.add_node(op, None, 0, vec![logits], results);
        let sizes = [self.tokens(), k as usize];
        self.inputs.extend(out);
        self.given.extend([Given::Values(Array::int(&sizes, ids)), Given::Values(Array::real(&sizes, weights))]);
    }
    /// A tensor that holds a router's logits in f32, as an operand with values.
    pub(crate) fn logits_operand(&mut self, experts: u64, values: Vec<f64>) {
        let logits = self.logits(experts);
        self.inputs.push(logits);
        self.given.push(Given::Values(Array::real(&[self.tokens(), experts as usize], values)));
    }
    /// A router's logits as an operand, by a projection whose operands are given too, so that the choice may compute them as well.
    pub(crate) fn carried_logits(&mut self, x: Array<f64>, w: Array<f64>, bias: Option<Array<f64>>) {
        let (tokens, hidden, experts) = (x.sizes[0], x.sizes[1], w.sizes[0]);
        let (Data::Real(xs), Data::Real(ws)) = (&x.data, &w.data) else { unreachable!("reals were given") };
        let bias_of = |e: usize| bias.as_ref().and_then(Array::as_real).map_or(0.0, |b| b[e]);
        let dot = |t: usize, e: usize| (0..hidden).map(|i| xs[t * hidden + i] * ws[e * hidden + i]).sum::<f64>() + bias_of(e);
        let values: Vec<f64> = (0..tokens * experts).map(|i| dot(i / experts, i % experts)).collect();
        let weight = |role, format| TensorKind::Weight(WeightRef { role, layer: Some(0), format });
        let (e, h) = (Dim::Fixed(experts as u64), Dim::Fixed(hidden as u64));
        let names = [self.name(), self.name(), self.name(), self.name()];
        let [x_name, w_name, bias_name, logits_name] = names;
        let from = self.graph.add_source(x_name, TensorKind::Activation, vec![Dim::Tokens, h.clone()], DType::Bf16);
        let by = self.graph.add_source(w_name, weight(WeightRole::Router, WeightFormat::Bf16), vec![e.clone(), h], DType::Bf16);
        let mut inputs = vec![from, by];
        self.carried = vec![(from, x), (by, w)];
        if let Some(bias) = bias {
            let added = self.graph.add_source(bias_name, weight(WeightRole::RouterBias, WeightFormat::Bf16), vec![e.clone()], DType::Bf16);
            inputs.push(added);
            self.carried.push((added, bias));
        }
        let result = NewTensor::activation(logits_name, vec![Dim::Tokens, e], DType::F32);
        let logits = self.graph.add_node(Op::Linear { role: LinearRole::Router }, None, 0, inputs, vec![result])[0];
        self.inputs.push(logits);
        self.given.push(Given::Values(Array::real(&[tokens, experts], values)));
    }
    fn logits(&mut self, experts: u64) -> TensorId {
        let (x, logits) = (self.name(), self.name());
        let x = self.graph.add_source(x, TensorKind::Activation, vec![Dim::Tokens, Dim::Fixed(8)], DType::Bf16);
        let result = NewTensor::activation(logits, vec![Dim::Tokens, Dim::Fixed(experts)], DType::F32);
        self.graph.add_node(Op::Linear { role: LinearRole::Router }, None, 0, vec![x], vec![result])[0]
    }
    /// Adds the op over the operands given so far. A result of kind `of` lives in that operand's storage.
    pub(crate) fn finish(mut self, op: Op, results: Vec<(Vec<Dim>, DType, Option<TensorId>)>) -> Case {
        let list = results.into_iter().map(|(shape, dtype, of)| {
            self.names += 1;
            let mut t = NewTensor::activation(format!("y{}", self.names), shape, dtype);
            if let Some(of) = of {
                t.kind = TensorKind::CacheUpdate { of };
            }
            t
        });
        let list: Vec<NewTensor> = list.collect();
        let outputs = self.graph.add_node(op, None, 0, self.inputs.clone(), list);
        let node = NodeId(self.graph.nodes.len() as u32 - 1);
        // Experts read the router's token rows again.
        if let Some((x, shape)) = self.carried.first().map(|(x, _)| (*x, self.graph.tensors[*x].shape.clone())) {
            let again = NewTensor::activation("again", shape, DType::Bf16);
            self.graph.add_node(Op::Add, None, 0, vec![x, x], vec![again]);
        }
        let cache_rows = self.cache_rows();
        let sizes = outputs
            .iter()
            .map(|&t| {
                let mut sizes: Vec<usize> = self.graph.local_sizes(t, RankId(0)).expect("whole").iter().map(|s| *s as usize).collect();
                if self.graph.storage(t) != t {
                    sizes[0] = cache_rows;
                }
                sizes
            })
            .collect();
        let (mut operands, mut values) = (Vec::new(), Vec::new());
        for (given, &tensor) in self.given.into_iter().zip(&self.inputs) {
            match given {
                Given::Values(mut array) => {
                    if let (Data::Real(v), Element::Bf16) = (&mut array.data, element_of(&self.graph, tensor)) {
                        v.iter_mut().for_each(|x| *x = f64::from(bf16::from_f64(*x).to_f32()));
                    } else if let Data::Real(v) = &mut array.data {
                        v.iter_mut().for_each(|x| *x = f64::from(*x as f32));
                    }
                    operands.push(Operand::Values(narrow(&array)));
                    values.push(array);
                }
                Given::Packed(packed, array) => {
                    operands.push(Operand::Packed(packed));
                    values.push(array);
                }
            }
        }
        operands.extend(self.carried.iter().map(|(_, array)| Operand::Values(narrow(array))));
        Case { graph: self.graph, node, slots: self.slots, operands, values, sizes }
    }
}

fn narrow(array: &Array<f64>) -> Array<f32> {
    let data = match &array.data {
        Data::Real(v) => Data::Real(v.iter().map(|x| *x as f32).collect()),
        Data::Int(v) => Data::Int(v.clone()),
    };
    Array { sizes: array.sizes.clone(), data }
}

fn random_packed(n: &mut Numbers, storage: Storage, sizes: &[usize], scale: f64) -> Packed {
    let (experts, rows, cols) = match *sizes {
        [e, r, c] => (e, r, c),
        [r, c] => (1, r, c),
        _ => (1, sizes.iter().product(), 1),
    };
    let extent = Extent { experts: experts as u64, rows: rows as u64, cols: cols as u64 };
    let groups = cols.div_ceil(storage.scale_cols() as usize);
    let (codes, scales) = match storage {
        Storage::Int4 { .. } => {
            let codes = (0..experts * rows * cols).map(|_| n.below(16) as u8).collect();
            let scales = (0..experts * rows * groups).map(|_| bf16::from_f64(scale / 8.0 * (1.0 + n.real() / 2.0)).to_f32()).collect();
            (codes, scales)
        }
        Storage::Fp8 { fused, block_rows, .. } => {
            let codes = (0..experts * rows * cols).map(|_| encode_e4m3((n.real() * 448.0) as f32)).collect();
            let part_rows = if fused { rows / 2 } else { rows };
            let blocks = part_rows.div_ceil(block_rows as usize);
            let parts = rows / part_rows.max(1);
            let of_block: Vec<f32> =
                (0..experts * parts * blocks * groups).map(|_| (scale / 448.0 * (1.0 + n.real() / 2.0)) as f32).collect();
            let mut scales = Vec::with_capacity(experts * rows * groups);
            for e in 0..experts {
                for row in 0..rows {
                    let block = (e * parts + row / part_rows) * blocks + row % part_rows / block_rows as usize;
                    scales.extend_from_slice(&of_block[block * groups..(block + 1) * groups]);
                }
            }
            (codes, scales)
        }
        Storage::Rows(_) => (Vec::new(), Vec::new()),
    };
    Packed { extent, codes, scales }
}

fn unpack(storage: Storage, p: &Packed) -> Vec<f64> {
    let cols = p.extent.cols as usize;
    let per_scale = storage.scale_cols() as usize;
    let groups = cols.div_ceil(per_scale);
    let value = |(i, code): (usize, &u8)| {
        let scale = f64::from(p.scales[i / cols * groups + i % cols / per_scale]);
        match storage {
            Storage::Int4 { .. } => (f64::from(*code) - 8.0) * scale,
            _ => f64::from(decode_e4m3(*code)) * scale,
        }
    };
    p.codes.iter().enumerate().map(value).collect()
}

/// Largest relative error of a result in bf16, as a norm: two roundings of 2^-9 at most and sums in f32.
const NORM_LIMIT: f64 = 6e-3;
/// Largest error of an element, as a share of the largest magnitude.
const ELEMENT_LIMIT: f64 = 3e-2;

impl Case {
    /// Runs the op on the GPU from poisoned results and compares. Ok holds the error norm, Err what is wrong.
    pub(crate) fn check(&self, trial: &mut Trial) -> Result<Result<f64, String>, Box<dyn Error>> {
        let placed = trial.place(&self.graph, self.node, &self.operands, &self.slots)?;
        trial.issue(&placed)?;
        let got = trial.results(&self.graph, self.node, &placed, &self.sizes)?;
        let expected = self.reference()?;
        let mut worst: f64 = 0.0;
        for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
            match compare(got, expected) {
                Ok(error) => worst = worst.max(error),
                Err(e) => return Ok(Err(format!("result {i} of {:?} by {}: {e}", expected.sizes, placed.kernels().join(", ")))),
            }
        }
        Ok(Ok(worst))
    }

    fn reference(&self) -> Result<Vec<Array<f64>>, Box<dyn Error>> {
        let node = &self.graph.nodes[self.node];
        let mut outputs: Vec<Array<f64>> = Vec::new();
        let place = in_place(&node.op);
        let mut inputs: Vec<Array<f64>> = self.values.clone();
        for (i, (sizes, &tensor)) in self.sizes.iter().zip(&node.outputs).enumerate() {
            let held = place.filter(|p| p.result == i).map(|p| std::mem::take(&mut inputs[p.operand]));
            outputs.push(held.unwrap_or_else(|| Array::poisoned(sizes, self.graph.tensors[tensor].dtype)));
        }
        let borrowed: Vec<&Array<f64>> = inputs.iter().collect();
        let context = LocalContext { sequences: &self.slots, logits: LogitsRows::Last, ..LocalContext::default() };
        run(&node.op, &context, &borrowed, &mut outputs)?;
        Ok(outputs)
    }
}

fn compare(got: &Array<f32>, expected: &Array<f64>) -> Result<f64, String> {
    match (&got.data, &expected.data) {
        (Data::Int(a), Data::Int(b)) => match a.iter().zip(b).position(|(a, b)| a != b) {
            Some(i) => Err(format!("element {i} is {}, expected {}", a[i], b[i])),
            None => Ok(0.0),
        },
        (Data::Real(a), Data::Real(b)) => {
            let largest = b.iter().fold(0f64, |m, x| if x.is_nan() { m } else { m.max(x.abs()) });
            let (mut error, mut norm) = (0.0, 0.0);
            for (i, (a, b)) in a.iter().zip(b).enumerate() {
                if b.is_nan() && a.is_nan() {
                    continue;
                }
                let d = (f64::from(*a) - b).abs();
                if d.is_nan() || d > ELEMENT_LIMIT * largest {
                    return Err(format!("element {i} is {a}, expected {b} (largest {largest})"));
                }
                error += d * d;
                norm += b * b;
            }
            let relative = if norm > 0.0 { (error / norm).sqrt() } else { 0.0 };
            if relative <= NORM_LIMIT { Ok(relative) } else { Err(format!("relative error {relative:.2e}, {NORM_LIMIT:.0e} allowed")) }
        }
        _ => Err("ids and reals mixed".into()),
    }
}
