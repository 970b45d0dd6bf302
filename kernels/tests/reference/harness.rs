//! Runs an op in f64 and f32, on one thread and on four, from poisoned results, and compares with the oracle's values.

use moetwin_kernels::reference::{Array, CacheSlot, Data, LocalContext, Real, ReferenceError, Turn, in_place, run};
use moetwin_kernels::splitmix::SplitMix64;
use moetwin_models::{Op, Sequence};
use proptest::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::sync::OnceLock;

/// Deterministic numbers in -1..1 that f32 holds exactly.
pub(crate) struct Numbers(SplitMix64);

impl Numbers {
    pub(crate) fn new(seed: u64) -> Self {
        Self(SplitMix64(seed))
    }
    pub(crate) fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next_u64() % n as u64) as usize
    }
    pub(crate) fn real(&mut self) -> f64 {
        self.0.real()
    }
    pub(crate) fn array(&mut self, sizes: &[usize]) -> Array<f64> {
        let len = sizes.iter().product();
        Array::real(sizes, (0..len).map(|_| self.real()).collect())
    }
}

pub(crate) fn real(sizes: &[usize], data: &[f64]) -> Array<f64> {
    Array::real(sizes, data.to_vec())
}

pub(crate) fn ids(sizes: &[usize], data: &[i32]) -> Array<f64> {
    Array::int(sizes, data.to_vec())
}

/// What an op starts from on the result side.
#[derive(Clone)]
pub(crate) enum Result64 {
    /// Poisoned reals.
    Real(Vec<usize>),
    /// Poisoned ids.
    Int(Vec<usize>),
    /// Storage updated in place.
    InPlace(Array<f64>),
}

impl Result64 {
    fn array<T: Real>(&self) -> Array<T> {
        match self {
            Result64::Real(sizes) => Array::real(sizes, vec![T::NAN; sizes.iter().product()]),
            Result64::Int(sizes) => Array::int(sizes, vec![i32::MIN; sizes.iter().product()]),
            Result64::InPlace(array) => convert(array),
        }
    }
}

pub(crate) fn convert<T: Real>(array: &Array<f64>) -> Array<T> {
    match &array.data {
        Data::Real(v) => Array::real(&array.sizes, v.iter().map(|x| T::from_f64(*x)).collect()),
        Data::Int(v) => Array::int(&array.sizes, v.clone()),
    }
}

/// A pool of one thread or of four.
fn pool(threads: usize) -> &'static ThreadPool {
    static POOLS: [OnceLock<ThreadPool>; 2] = [OnceLock::new(), OnceLock::new()];
    let index = if threads == 1 { 0 } else { 1 };
    POOLS[index].get_or_init(|| ThreadPoolBuilder::new().num_threads([1, 4][index]).build().expect("a small pool of threads starts"))
}

/// Runs an op on one thread or on four.
pub(crate) fn run_on<T: Real>(
    threads: usize,
    op: &Op,
    context: &LocalContext<'_>,
    inputs: &[Array<f64>],
    results: &[Result64],
) -> Result<Vec<Array<T>>, ReferenceError> {
    let mut inputs: Vec<Array<T>> = inputs.iter().map(convert).collect();
    if let Some(place) = in_place(op)
        && place.operand < inputs.len()
    {
        inputs[place.operand] = Array::default();
    }
    let inputs: Vec<&Array<T>> = inputs.iter().collect();
    let mut outputs: Vec<Array<T>> = results.iter().map(Result64::array).collect();
    pool(threads).install(|| run(op, context, &inputs, &mut outputs))?;
    Ok(outputs)
}

fn bits<T: Real>(arrays: &[Array<T>]) -> Vec<u64> {
    arrays
        .iter()
        .flat_map(|a| match &a.data {
            Data::Real(v) => v.iter().map(|x| x.to_f64().to_bits()).collect::<Vec<_>>(),
            Data::Int(v) => v.iter().map(|x| *x as u64).collect(),
        })
        .collect()
}

/// The op's results in f64, after the checks that hold for every op: the same bits on one thread and on four, and f32 close to f64.
pub(crate) fn compute(op: &Op, context: &LocalContext<'_>, inputs: &[Array<f64>], results: &[Result64]) -> Vec<Array<f64>> {
    let outputs = run_on::<f64>(1, op, context, inputs, results).expect("the operands are legal");
    let threaded = run_on::<f64>(4, op, context, inputs, results).expect("the operands are legal");
    assert_eq!(bits(&outputs), bits(&threaded), "four threads change the result of {op:?}");
    let single = run_on::<f32>(1, op, context, inputs, results).expect("the operands are legal");
    let threaded = run_on::<f32>(4, op, context, inputs, results).expect("the operands are legal");
    assert_eq!(bits(&single), bits(&threaded), "four threads change the f32 result of {op:?}");
    for (double, single) in outputs.iter().zip(&single) {
        let single = Array { sizes: single.sizes.clone(), data: widen(&single.data) };
        assert_close(&single, double, 2e-5);
    }
    outputs
}

fn widen(data: &Data<f32>) -> Data<f64> {
    match data {
        Data::Real(v) => Data::Real(v.iter().map(|x| f64::from(*x)).collect()),
        Data::Int(v) => Data::Int(v.clone()),
    }
}

/// Equal ids, and reals within `tolerance` of the largest magnitude (at least 1). Poison is close to nothing but equal poison.
pub(crate) fn assert_close(got: &Array<f64>, expected: &Array<f64>, tolerance: f64) {
    assert_eq!(got.sizes, expected.sizes);
    match (&got.data, &expected.data) {
        (Data::Int(a), Data::Int(b)) => assert_eq!(a, b),
        (Data::Real(a), Data::Real(b)) => {
            let largest = b.iter().filter(|x| !x.is_nan()).fold(1.0f64, |m, x| m.max(x.abs()));
            for (i, (a, b)) in a.iter().zip(b).enumerate() {
                let same = (a - b).abs() <= tolerance * largest || (a.is_nan() && b.is_nan());
                assert!(same, "element {i} of {:?} is {a}, expected {b}", got.sizes);
            }
        }
        _ => panic!("ids and reals mixed"),
    }
}

/// Runs an op and compares every result with the oracle's.
pub(crate) fn check(op: &Op, context: &LocalContext<'_>, inputs: &[Array<f64>], results: &[Result64], oracle: &[Array<f64>]) {
    let outputs = compute(op, context, inputs, results);
    assert_eq!(outputs.len(), oracle.len());
    for (output, expected) in outputs.iter().zip(oracle) {
        assert_close(output, expected, 1e-12);
    }
}

/// Sequences with gaps between their cache rows; empty ones and none at all included.
pub(crate) fn sequences() -> impl Strategy<Value = Vec<CacheSlot>> {
    prop::collection::vec((0u32..9, 0u32..5, 0usize..3), 0..4).prop_map(|list| {
        let mut next = 0;
        list.into_iter()
            .map(|(past, new, gap)| {
                let cache_start = next + gap;
                next = cache_start + (past + new) as usize;
                CacheSlot { sequence: Sequence { past, new }, cache_start, turn: Turn::WHOLE }
            })
            .collect()
    })
}

/// A token of a step: the sequence's cache rows that it sees without a window, and its position.
pub(crate) struct Token {
    pub(crate) cache_start: usize,
    pub(crate) position: usize,
}

pub(crate) fn tokens(sequences: &[CacheSlot]) -> Vec<Token> {
    sequences
        .iter()
        .flat_map(|s| (0..s.sequence.new).map(|j| Token { cache_start: s.cache_start, position: (s.sequence.past + j) as usize }))
        .collect()
}

pub(crate) fn positions(sequences: &[CacheSlot]) -> Array<f64> {
    let data: Vec<i32> = tokens(sequences).iter().map(|t| t.position as i32).collect();
    ids(&[data.len()], &data)
}

/// Cache rows that hold all sequences, two more at the end.
pub(crate) fn cache_rows(sequences: &[CacheSlot]) -> usize {
    sequences.iter().map(|s| s.cache_start + (s.sequence.past + s.sequence.new) as usize).max().unwrap_or(0) + 2
}

/// `at(row, column)` of a matrix.
pub(crate) fn at(array: &Array<f64>, row: usize, col: usize) -> f64 {
    array.as_real().expect("a real matrix")[row * array.sizes[1] + col]
}
