//! Products of many rows by a matrix library, on the recording fake: used where there is one, our kernels where there is none.

mod support;

use moetwin_cuda::exec::CudaExecutor;
use moetwin_cuda::exec::CudaOptions;
use moetwin_cuda::exec::fake::{Asked, FakeHost};
use moetwin_kernels::launch::LIBRARY_ROWS;
use moetwin_models::{BuildOptions, LogitsRows, Phase, RankId, Sequence, Step, plan};
use moetwin_runtime::reference::StepInputs;
use moetwin_runtime::weights::SyntheticWeights;
use moetwin_runtime::{Executor, LowerOptions, lower};
use support::{model, options, summing};

/// Products and kernels of a prompt of `rows` tokens on rank 0.
fn prefill(host: &FakeHost, rows: u32) -> (usize, usize) {
    let spec = model();
    let sequences = vec![Sequence { past: 0, new: rows }];
    let step = Step { phase: Phase::Prefill, sequences: sequences.clone(), logits: LogitsRows::Last };
    let program = lower(plan(&spec, &step, &summing(), &BuildOptions::default()).unwrap(), LowerOptions::default()).unwrap();
    let options = CudaOptions { capacity: rows, library: true, ..options(10, None) };
    let mut executor = CudaExecutor::on(host.clone(), (0..8).map(RankId).collect(), 8, None, options).unwrap();
    let weights = SyntheticWeights::new(&spec, 1);
    (0..8).try_for_each(|rank| executor.load(&program, RankId(rank), &weights)).unwrap();
    let key = executor.prepare(program).unwrap();
    let before = host.log().len();
    executor.run(key, &StepInputs { token_ids: vec![1; rows as usize], sequences }).unwrap();
    let count = |wanted: fn(&Asked) -> bool| host.log()[before..].iter().filter(|(r, a)| r.0 == 0 && wanted(a)).count();
    let counts = (count(|a| *a == Asked::Work("product")), count(|a| matches!(a, Asked::Launch(_))));
    drop(executor);
    assert_eq!((host.wrong(), host.open_gpus()), (Vec::<String>::new(), 0));
    counts
}

#[test]
fn a_library_takes_products_of_many_rows_and_nothing_else() {
    let (none, kernels) = prefill(&FakeHost::default(), 256);
    let (products, left) = prefill(&FakeHost::default().with_library(), 256);
    assert_eq!((none, products + left), (0, kernels), "every launch has one form");
    // In each of the two layers the compressing, the query's and the output's projection; the dense layer's two; the shared expert's first, as
    // its second contracts two columns a rank. The router's results are f32, and the logits are of one row.
    assert_eq!(products, 9, "of {kernels} launches");
    assert_eq!(prefill(&FakeHost::default().with_library(), LIBRARY_ROWS as u32 - 1).0, 0, "few rows are ours");
}
